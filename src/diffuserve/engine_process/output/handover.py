"""Finished latents on their way into the engine and out of it."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from torch import Tensor

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.workers.worker import LATENTS_ID, LATENTS_NAME
from diffuserve.engine.outputs import GenerationResult
from diffuserve.engine_process.output.latents_file import LatentsHeader, read_latents, write_latents
from diffuserve.protocol.messages import AddJob, JobDenoised


@dataclass(frozen=True)
class GivenLatents:
    """Finished latents that a job starts from, if any, and the seconds that led to them."""

    tensor: Tensor | None = None
    timings: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class LatentTransfer:
    """Reads and writes finished latents of one model. `read_hash` returns the hash of its weights."""

    model: str
    read_hash: Callable[[], str]

    def given(self, job: AddJob, params: GenerationParams) -> GivenLatents:
        """Return the latents that a job starts from. Raise `LatentsUnusable`."""
        path = job.files.get(LATENTS_ID)
        if path is None:
            return GivenLatents()
        expected = LatentsHeader.of(self.model, self.read_hash(), params)
        return GivenLatents(*read_latents(Path(path), expected))

    def write(self, job: AddJob, result: GenerationResult) -> JobDenoised:
        """Write the latents of a job that ends with them, and return the report of that."""
        assert result.latents is not None
        weights, path = self.read_hash(), Path(job.folder) / LATENTS_NAME
        header = LatentsHeader.of(self.model, weights, result.params, asdict(result.timings))
        write_latents(path, result.latents, header)
        return JobDenoised(
            attempt=job.attempt,
            path=str(path),
            weights=weights,
            actual_seconds=result.timings.device_seconds,
        )


def added_up(timings: Mapping[str, float], earlier: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of both phases of a job."""
    return {name: seconds + earlier.get(name, 0.0) for name, seconds in timings.items()}
