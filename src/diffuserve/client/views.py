"""A job as the API tells it. Fields that a newer server adds are left out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter

from diffuserve.domain.job import FINAL_STATUSES, Artifact, Band, JobError, JobStatus, Phase, QueueEstimate


@dataclass(frozen=True)
class ProgressView:
    """Denoising steps done, of all; `fraction` in 0…1."""

    step: int
    total: int
    fraction: float


@dataclass(frozen=True, kw_only=True)
class ArtifactView(Artifact):
    """A finished file and where it is fetched; the URL expires."""

    url: str = ""


@dataclass(frozen=True, kw_only=True)
class ResultView:
    artifacts: tuple[ArtifactView, ...] = ()
    input: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    safety: Mapping[str, Any] = field(default_factory=dict)

    @property
    def images(self) -> list[ArtifactView]:
        """Without thumbnails, in order."""
        return sorted((one for one in self.artifacts if one.role == "image"), key=lambda one: one.index)


@dataclass(frozen=True, kw_only=True)
class JobView:
    id: str
    kind: str
    model: str
    status: JobStatus
    input: Mapping[str, Any]
    created_at: datetime
    priority: Band = Band.STANDARD
    attempt: int = 0
    phase: Phase | None = None
    progress: ProgressView | None = None
    queue: QueueEstimate | None = None
    prompt: Mapping[str, Any] | None = None
    result: ResultView | None = None
    error: JobError | None = None
    urls: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    started_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def drawn_prompt(self) -> str:
        """As the model reads it; `prompt` tells how it came to be."""
        return str(self.input.get("prompt", ""))

    def to_json(self) -> str:
        return _JOB.dump_json(self, indent=2).decode()


@dataclass(frozen=True)
class JobPage:
    """Jobs, newest first; `next` leads to those after them."""

    data: tuple[JobView, ...]
    has_more: bool = False
    next: str | None = None

    def to_json(self) -> str:
        return _PAGE.dump_json(self, indent=2).decode()


@dataclass(frozen=True)
class LiveEvent:
    """News of a job. Only what the log keeps has a `seq`; progress and previews have none."""

    type: str
    data: Mapping[str, Any] = field(default_factory=dict)
    seq: int | None = None

    @property
    def is_final(self) -> bool:
        return self.type in FINAL_STATUSES


_JOB = TypeAdapter(JobView)
_PAGE = TypeAdapter(JobPage)
_EVENT = TypeAdapter(LiveEvent)


def job_of(content: bytes) -> JobView:
    return _JOB.validate_json(content)


def page_of(content: bytes) -> JobPage:
    return _PAGE.validate_json(content)


def event_of(content: str) -> LiveEvent:
    return _EVENT.validate_json(content)
