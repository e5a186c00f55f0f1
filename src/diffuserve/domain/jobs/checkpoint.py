"""Checkpoints of jobs: their identity, maximum size and place in the store."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

import orjson
from pydantic import Field

from diffuserve.domain.bounds import Size
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.text.path_parts import Sha256

FORMAT = "1"
"""Version of the file; a worker refuses every other one."""
HEADER_BYTES = 16_384
"""Bound of the names, shapes and texts before the tensors of a file."""
MAX_TENSORS = 16
"""Bound of all tensors of a request together, in latents of it: sampler's memory, noise and guides."""
CHECKPOINT_ID = "checkpoint"
"""Id of a job's checkpoint among the files that its lease reads."""
NUM_SLOTS = 2
"""Files of one lease that take turns, so that the last one that was reported is never written over."""
VALUE_BYTES = 4
"""Bytes of a value of latents, at most."""
_GENERATOR_BYTES = 8_192
_STEP_BYTES = 3 * 8


@dataclass(frozen=True)
class Identity:
    """What a checkpoint belongs to: only an engine for which all of it matches may resume it.

    `weights` is the hash of the model's weights, `dtype` the name of the dtype of computation, and `request`
    the hash of the parameters, including the seed and the names of input images.
    """

    model: str
    weights: str
    dtype: str
    request: str

    @classmethod
    def of(cls, model: str, weights: str, dtype: str, params: GenerationParams) -> "Identity":
        """Identify a request whose defaults are filled in."""
        values = orjson.dumps(params.to_dict(), option=orjson.OPT_SORT_KEYS)
        return cls(model, weights, dtype, hashlib.sha256(values).hexdigest())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Identity":
        """Build an identity from the texts of a file. Raise `KeyError` if one is missing."""
        return cls(**{field.name: str(values[field.name]) for field in fields(cls)})

    def to_dict(self) -> dict[str, str]:
        return asdict(self)

    def difference(self, other: "Identity") -> str | None:
        """Return how another identity differs from this one, or `None` if it does not."""
        for name, value in self.to_dict().items():
            if getattr(other, name) != value:
                return f"{name} {getattr(other, name)!r} instead of {value!r}"
        return None


def interval(predicted_seconds: float, checkpoint_seconds: float) -> float:
    """Return the seconds between a job's checkpoints; 0, for none, if the whole job is shorter than that."""
    return checkpoint_seconds if predicted_seconds >= checkpoint_seconds else 0.0


def max_bytes(latent_values: int, num_images: int, num_evaluations: int) -> int:
    """Return the maximum bytes of the file of a request's checkpoint, known before any work.

    `latent_values` is the number of values in all its latents, `num_evaluations` the length of its schedule.
    """
    tensors = MAX_TENSORS * VALUE_BYTES * latent_values
    return HEADER_BYTES + tensors + _GENERATOR_BYTES * num_images + _STEP_BYTES * (num_evaluations + 1)


@dataclass(frozen=True, kw_only=True)
class StoredCheckpoint:
    """A job's checkpoint after `step` steps, stored under the token of the lease that uploaded it.

    `sha256`, in hexadecimal, is that of its file, which is in `slot`.
    """

    lease_token: int
    slot: Annotated[int, Field(ge=0, lt=NUM_SLOTS)]
    step: Annotated[int, Field(ge=1)]
    size_bytes: Size
    sha256: Sha256
