"""Messages in which workers report how far their jobs are."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from diffuserve.domain.jobs.job import Phase
from diffuserve.domain.resource_base import Resource

MAX_PROGRESS_JOBS = 200
"""Number of jobs whose progress a request may have."""


@dataclass(frozen=True, kw_only=True)
class ProgressReport:
    """Progress of a running job, for clients that watch it.

    `preview` is a PNG in base64 of the image number `preview_image`, and that one's number `preview_index`.
    `step` of `total` are denoising steps in every phase; of clips `frames` of `num_frames` are decoded.
    """

    lease_token: int
    phase: Phase
    step: int = 0
    total: int = 0
    frames: int = 0
    num_frames: int = 0
    preview: str | None = None
    preview_index: int | None = None
    preview_image: int | None = None


@dataclass(frozen=True, kw_only=True)
class JobProgress:
    """Progress of one of the jobs that a worker holds."""

    job_id: str
    report: ProgressReport


@dataclass(frozen=True, kw_only=True)
class WatchedReports(Resource):
    """Response to progress: those of the reported jobs that somebody watches."""

    watched: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class WorkerProgress:
    """Progress of those of a worker's jobs that have advanced, without previews."""

    jobs: Annotated[tuple[JobProgress, ...], Field(max_length=MAX_PROGRESS_JOBS)]
