"""Workers' messages about the progress of their jobs."""

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

    `preview` is a PNG in base64, number `preview_index` of the previews of image number `preview_image`.
    `step` of `total` denoising steps are done, in every phase; `frames` of a clip's `num_frames` are decoded.
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
