"""Images, clips and sounds that a program has fetched."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from diffuserve.client.errors import error_of
from diffuserve.domain.errors import DiffuserveError, JobNotDone, ServerRefused
from diffuserve.domain.resources.job import ArtifactResource, JobResource


@dataclass(frozen=True)
class GeneratedFile:
    """An image, a clip or a sound of a job, with its content.

    `artifact` tells its size, seed and format. Raise `ServerRefused` if the content is another.
    """

    artifact: ArtifactResource
    content: bytes = field(repr=False)
    job: JobResource = field(repr=False)

    def __post_init__(self) -> None:
        if hashlib.sha256(self.content).hexdigest() != self.artifact.sha256:
            raise ServerRefused(f"{self.artifact.name} of job {self.job.id} did not arrive as it is stored")

    def save(self, path: str | Path) -> Path:
        """Write the content to a file as it is, and return its path."""
        path = Path(path)
        path.write_bytes(self.content)
        return path


def error_of_job(job: JobResource) -> DiffuserveError:
    """Return the error that a job which has no result stands for."""
    if job.error is None:
        return JobNotDone(job.id, str(job.status))
    told = error_of({"code": job.error.code, "detail": job.error.message}, None)
    reason = f"{job.status}: {job.error.message} ({job.error.code})"
    return JobNotDone(job.id, reason) if isinstance(told, ServerRefused) else told
