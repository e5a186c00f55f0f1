"""The file of a job's finished latents, by which a worker hands the job to another one."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from diffuserve.domain.errors import LatentsUnusable
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.requests.tensor_file import DamagedFile, TensorFile, read_tensors, write_tensors

FORMAT = "1"
_TENSOR = "latents"
_PARAMS = ("width", "height", "num_frames", "seconds", "fps", "num_images", "seed")


@dataclass(frozen=True)
class LatentsHeader:
    """Identity of finished latents: their model, its weights' hash, and the parameters that decoding needs.

    `timings` are the seconds of the phases that led to them.
    """

    model: str
    weights: str
    params: Mapping[str, float | None]
    timings: Mapping[str, float] = field(default_factory=dict, compare=False)

    @classmethod
    def of(
        cls, model: str, weights: str, params: GenerationParams, timings: Mapping[str, float] | None = None
    ) -> "LatentsHeader":
        """Describe the latents of a request whose defaults are filled in."""
        return cls(model, weights, {name: getattr(params, name) for name in _PARAMS}, timings or {})


def write_latents(path: Path, latents: Tensor, header: LatentsHeader) -> None:
    """Write latents with their header."""
    metadata = {
        "format": FORMAT,
        "model": header.model,
        "weights": header.weights,
        "params": json.dumps(header.params),
        "timings": json.dumps(header.timings),
    }
    write_tensors(path, TensorFile({_TENSOR: latents}, metadata))


def read_latents(path: Path, expected: LatentsHeader) -> tuple[Tensor, Mapping[str, float]]:
    """Return latents and the seconds that led to them.

    Raise `LatentsUnusable` unless they are whole, and those of the `expected` model, weights and parameters.
    """
    try:
        content = read_tensors(path)
        header, latents = _header(content.texts), content.tensors[_TENSOR]
    except (DamagedFile, ValueError, KeyError, TypeError) as error:
        raise LatentsUnusable(f"the file of finished latents is damaged: {error}") from error
    if (version := content.texts["format"]) != FORMAT:
        raise LatentsUnusable(f"finished latents are of format {version!r}, not {FORMAT!r}")
    for name in ("model", "weights", "params"):
        found, wanted = getattr(header, name), getattr(expected, name)
        if found != wanted:
            raise LatentsUnusable(
                f"finished latents are of other {name}: {found!r}, and this worker has {wanted!r}"
            )
    return latents, header.timings


def _header(metadata: Mapping[str, str]) -> LatentsHeader:
    return LatentsHeader(
        model=metadata["model"],
        weights=metadata["weights"],
        params=json.loads(metadata["params"]),
        timings=json.loads(metadata["timings"]),
    )
