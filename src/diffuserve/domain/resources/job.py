"""Jobs, their results and their events, as the API writes them. Times are RFC 3339 strings."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from diffuserve.domain.jobs.job import (
    FINAL_STATUSES,
    Artifact,
    Band,
    JobError,
    JobResult,
    JobStatus,
    Phase,
    QueueEstimate,
)
from diffuserve.domain.resource_base import Page, Resource
from diffuserve.domain.resources.safety import FilterResource, VerdictResource
from diffuserve.domain.text.path_parts import Id

AnyArtifact = TypeVar("AnyArtifact", bound=Artifact)


@dataclass(frozen=True, kw_only=True)
class ProgressResource(Resource):
    """Denoising steps done, and all of them, in every phase; and the same of frames.

    Clients of older servers read no frames.
    """

    step: int
    total: int
    fraction: float = field(metadata={"description": "Part of the steps that is done, in 0…1."})
    frames: int = field(default=0, metadata={"description": "Frames of clips that are decoded."})
    num_frames: int = field(
        default=0, metadata={"description": "Frames of all clips of the job; 0 for images and sounds."}
    )


@dataclass(frozen=True, kw_only=True)
class QueueResource(QueueEstimate, Resource):
    """Estimated place in the queue and seconds until the end; fair queueing may also move a job back."""


@dataclass(frozen=True, kw_only=True)
class ArtifactResource(Artifact, Resource):
    """Finished file and the URL to fetch it."""

    url: str = field(
        metadata={
            "description": "Opens the file without a key until it expires; signed anew in every response."
        }
    )


@dataclass(frozen=True, kw_only=True)
class ResultResource(JobResult, Resource):
    """Result of a job; `timings` are seconds by the worker's clock."""

    artifacts: tuple[ArtifactResource, ...]
    safety: Mapping[str, Any] = field(
        metadata={"description": "By stage: the filter that checked the images, and its verdicts."}
    )

    @property
    def images(self) -> list[ArtifactResource]:
        """The images in order, without thumbnails."""
        return images_among(self.artifacts)

    @property
    def videos(self) -> list[ArtifactResource]:
        """The clips in order, without their posters and sprite sheets."""
        return videos_among(self.artifacts)

    @property
    def sounds(self) -> list[ArtifactResource]:
        """The sounds in order; that of a clip is in its file."""
        return sounds_among(self.artifacts)

    @property
    def outputs(self) -> list[ArtifactResource]:
        """The images, clips or sounds that the job asked for, in order."""
        return outputs_among(self.artifacts)


def images_among(artifacts: Iterable[AnyArtifact]) -> list[AnyArtifact]:
    """Return the images in order, without thumbnails."""
    return _of_role("image", artifacts)


def videos_among(artifacts: Iterable[AnyArtifact]) -> list[AnyArtifact]:
    """Return the clips in order, without their posters and sprite sheets."""
    return _of_role("video", artifacts)


def sounds_among(artifacts: Iterable[AnyArtifact]) -> list[AnyArtifact]:
    """Return the sounds in order."""
    return _of_role("audio", artifacts)


def outputs_among(artifacts: Iterable[AnyArtifact]) -> list[AnyArtifact]:
    """Return what a job asked for, in order: its images, its clips or its sounds."""
    artifacts = list(artifacts)
    return videos_among(artifacts) or images_among(artifacts) or sounds_among(artifacts)


def _of_role(role: str, artifacts: Iterable[AnyArtifact]) -> list[AnyArtifact]:
    chosen = (artifact for artifact in artifacts if artifact.role == role)
    return sorted(chosen, key=lambda artifact: artifact.index)


@dataclass(frozen=True, kw_only=True)
class ErrorResource(JobError, Resource):
    """Reason for a job's failure: `code` for programs, `message` for people."""

    safety: Mapping[str, Any] = field(
        metadata={"description": "As in a result, where the image filter withheld images."}
    )


@dataclass(frozen=True, kw_only=True)
class JobUrls(Resource):
    """Absolute URLs of a job."""

    self: str
    cancel: str
    events: str
    result: str
    live: str | None = field(
        default=None, metadata={"description": "Null unless the job was submitted with `live`."}
    )


@dataclass(frozen=True, kw_only=True)
class PromptResource(Resource):
    """History of the prompt in `input`."""

    original: str
    verdict: VerdictResource
    filter: FilterResource | None = field(
        metadata={"description": "Null where no filter checked the prompt."}
    )
    expansion: str = field(
        metadata={"description": "`expanded`, or why it is not; empty if the client did not ask for it."}
    )
    reason: str


@dataclass(frozen=True, kw_only=True)
class JobResource(Resource):
    """Job with its progress, its place in the queue and its result."""

    id: Id
    kind: str
    model: str
    status: JobStatus
    phase: Phase | None
    progress: ProgressResource
    queue: QueueResource | None = field(metadata={"description": "Null unless the job is queued."})
    input: Mapping[str, Any] = field(
        metadata={"description": "With every default filled in, the seed included."}
    )
    asked: Mapping[str, Any] | None = field(
        default=None,
        metadata={
            "description": "What the client asked for where `input` has the nearest value that is allowed; "
            "null if it got what it asked for."
        },
    )
    prompt: PromptResource | None
    result: ResultResource | None
    error: ErrorResource | None
    attempt: int
    priority: Band
    urls: JobUrls
    created_at: str
    started_at: str | None
    finished_at: str | None
    deadline: str | None = field(
        default=None, metadata={"description": "When the result is needed; null if the client did not say."}
    )
    best_effort: bool = field(
        default=False, metadata={"description": "Whether it runs even if it misses its deadline."}
    )
    exact: bool = field(
        default=False,
        metadata={"description": "Whether it runs on workers alone whose weights are not quantized."},
    )
    requested_model: str | None = field(
        default=None,
        metadata={
            "description": "Model that was asked for, where the fallback model draws the job; else null."
        },
    )
    fallback_model: str | None = field(
        default=None, metadata={"description": "Model that draws it if `model` does not start it in time."}
    )
    max_attempts: int | None = field(
        default=None, metadata={"description": "Attempts that may fail; null for the server's own number."}
    )
    worker_hint: str | None = None
    store: bool = field(
        default=True, metadata={"description": "Whether it stays after its delivery until it is outdated."}
    )
    kept_until: str | None = field(
        default=None,
        metadata={"description": "When it is deleted with its files; null until it has ended."},
    )
    metadata: Mapping[str, Any]
    batch_id: str | None
    custom_id: str | None
    tenant_id: str | None = None
    worker_id: str | None = field(
        default=None, metadata={"description": "Worker of the newest attempt; null before the first."}
    )
    cost_seconds: float | None = field(default=None, metadata={"description": "Predicted device-seconds."})
    actual_seconds: float | None = field(
        default=None, metadata={"description": "Device-seconds that it took; null until it has ended."}
    )
    trace_id: str | None = field(
        default=None, metadata={"description": "Trace that it belongs to, in hex; null without one."}
    )

    @property
    def final_prompt(self) -> str:
        """The prompt that the model reads; `prompt` tells how it came from the client's own."""
        return str(self.input.get("prompt", ""))


@dataclass(frozen=True, kw_only=True)
class JobPage(Page):
    """Page of jobs, newest first."""

    data: tuple[JobResource, ...]


@dataclass(frozen=True, kw_only=True)
class EventResource(Resource):
    """Event of a job. Stored events have `seq` and `created_at`; progress and previews have neither."""

    job_id: str
    seq: int | None
    type: str
    data: Mapping[str, Any]
    created_at: str | None

    @property
    def is_final(self) -> bool:
        """True for the event that ends the job."""
        return self.type in FINAL_STATUSES
