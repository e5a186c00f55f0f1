"""The bodies that clients send, and the shapes of the answers for the OpenAPI document."""

from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from diffuserve.domain.job import Band, JobStatus, Phase
from diffuserve.domain.params import (
    MAX_GUIDANCE_SCALE,
    MAX_IMAGES,
    MAX_PROMPT_CHARACTERS,
    MAX_SEED,
    MAX_STEPS,
)
from diffuserve.domain.safety import Action
from diffuserve.domain.worker import Lease, WorkerState

MAX_METADATA_BYTES = 16_384
MAX_JOB_SECONDS = 30 * 86_400.0
MAX_PREVIEWS = 3


def _check_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    try:
        size = len(orjson.dumps(metadata))
    except (TypeError, ValueError) as error:
        raise ValueError(f"cannot be stored as JSON: {error}") from error
    if size > MAX_METADATA_BYTES:
        raise ValueError(f"has {size:,} bytes as JSON; at most {MAX_METADATA_BYTES:,} are allowed")
    return metadata


Metadata = Annotated[dict[str, Any], AfterValidator(_check_metadata)]
Prompt = Annotated[str, Field(min_length=1, max_length=MAX_PROMPT_CHARACTERS)]
Steps = Annotated[int, Field(ge=1, le=MAX_STEPS)]
Pixels = Annotated[int, Field(ge=1, le=65_536, multiple_of=16)]
Guidance = Annotated[float, Field(ge=0, le=MAX_GUIDANCE_SCALE, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]
ModelName = Annotated[str, Field(min_length=1, max_length=200)]
Seconds = Annotated[float, Field(gt=0, le=MAX_JOB_SECONDS, allow_inf_nan=False)]
OutputFormat = Literal["png", "webp", "jpeg"]
JobEventName = Literal["job.succeeded", "job.failed", "job.canceled", "job.expired"]


class Body(BaseModel):
    """Unknown fields are refused, and nothing is guessed from another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class GenerationInput(Body):
    """What to draw. What is left out or null is the model's own default."""

    prompt: Prompt
    negative_prompt: Annotated[str, Field(max_length=MAX_PROMPT_CHARACTERS)] = ""
    width: Pixels | None = None
    height: Pixels | None = None
    num_inference_steps: Steps | None = None
    guidance_scale: Guidance | None = None
    seed: Seed | None = Field(default=None, description="Drawn at random if left out; retries keep it.")
    num_images: Annotated[int, Field(ge=1, le=MAX_IMAGES)] = 1
    num_frames: Annotated[int, Field(ge=1)] = 1
    max_sequence_length: Annotated[int, Field(ge=1, le=65_536)] | None = None


class WebhookBody(Body):
    """Where to tell that the job has ended, in a message signed after Standard Webhooks."""

    url: Annotated[str, Field(min_length=1, max_length=2_000)]
    events: Annotated[list[JobEventName], Field(min_length=1)] | None = Field(
        default=None, description="Any end if left out."
    )


class NewJobBody(Body):
    """A job to do."""

    kind: Literal["image.generate"] = "image.generate"
    model: ModelName | None = Field(default=None, description="The server's default if left out.")
    input: GenerationInput
    priority: Annotated[Band, Field(strict=False)] | None = Field(
        default=None, description="The plan's default if left out."
    )
    expires_in: Seconds | None = Field(default=None, description="Seconds to wait in the queue at most.")
    timeout: Seconds | None = Field(default=None, description="Seconds that one run may take.")
    metadata: Metadata = Field(
        default_factory=dict, description="Given back as it is; at most 16 KB as JSON."
    )
    output_format: OutputFormat = "png"
    webhook: WebhookBody | None = None
    expand_prompt: bool = Field(
        default=False, description="Have a language model make the prompt longer, where this server has one."
    )
    num_previews: Annotated[int, Field(ge=0, le=MAX_PREVIEWS)] = 0


class Answer(BaseModel):
    """Shapes for the document; routes write them without building these."""

    model_config = ConfigDict(extra="forbid")


class ProgressShape(Answer):
    step: int
    total: int
    fraction: float = Field(description="In 0…1.")


class QueueShape(Answer):
    """A guess: under fair queueing a place may also move back."""

    ahead: int
    eta_s_low: float
    eta_s_high: float


class ArtifactShape(Answer):
    name: str
    content_type: str
    size_bytes: int
    sha256: str
    width: int
    height: int
    index: int
    role: str
    seed: int | None
    url: str = Field(description="Opens the file without a key, for a while; signed anew in every answer.")


class ResultShape(Answer):
    artifacts: list[ArtifactShape]
    input: dict[str, Any]
    timings: dict[str, float]
    warnings: list[str]
    safety: dict[str, Any] = Field(description="By stage: the filter that saw the images, and its verdicts.")


class ErrorShape(Answer):
    code: str
    message: str
    retryable: bool
    safety: dict[str, Any] = Field(description="As in a result, where the image filter kept images in.")


class UrlsShape(Answer):
    self: str
    cancel: str
    events: str
    result: str


class FilterShape(Answer):
    """What gave a verdict; thresholds are scores in 0…1."""

    name: str
    version: str
    thresholds: dict[str, float]


class FindingShape(Answer):
    category: str
    action: Action
    source: str
    score: float


class VerdictShape(Answer):
    action: Action
    findings: list[FindingShape]


class PromptShape(Answer):
    """How the prompt in `input` came to be."""

    original: str
    verdict: VerdictShape
    filter: FilterShape | None = Field(description="Null where nothing looked at prompts.")
    expansion: str = Field(description="`expanded`, or why it is not; empty if nobody asked for it.")
    reason: str


class JobShape(Answer):
    id: str
    kind: str
    model: str
    status: JobStatus
    phase: Phase | None
    progress: ProgressShape
    queue: QueueShape | None = Field(description="Null unless the job is queued.")
    input: dict[str, Any] = Field(description="With every default filled in, the seed included.")
    prompt: PromptShape | None
    result: ResultShape | None
    error: ErrorShape | None
    attempt: int
    priority: Band
    urls: UrlsShape
    created_at: str
    started_at: str | None
    finished_at: str | None
    metadata: dict[str, Any]
    batch_id: str | None
    custom_id: str | None


class JobPageShape(Answer):
    data: list[JobShape]
    has_more: bool
    next: str | None = Field(description="The `after` of the next page.")


class ProblemShape(BaseModel):
    """RFC 9457, with our fields."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    retryable: bool
    request_id: str


class FileShape(Answer):
    name: str
    size_bytes: int
    sha256: str


class UploadUrl(Answer):
    url: str | None


class WorkerReportShape(BaseModel):
    state: WorkerState
    num_gpus: int
    num_cpus: int
    memory_bytes: int
    memory_limit_bytes: int
    resident_models: list[str]
    num_running: int
    image_filter: dict[str, Any] | None


class WorkerShape(BaseModel):
    id: str
    name: str
    state: WorkerState
    models: list[str]
    report: WorkerReportShape
    registered_at: str
    heartbeat_at: str
    is_draining: bool
    num_leases: int


class WorkersShape(Answer):
    data: list[WorkerShape]


class ModelSafetyShape(Answer):
    """The filters at work now; an empty list or null where there are none."""

    prompt: FilterShape | None
    image: list[FilterShape | None] = Field(description="Those of the workers, null for a worker without.")


class ModelShape(BaseModel):
    """OpenAI's fields, then ours: the model's defaults and limits."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    family: str
    defaults: dict[str, Any]
    limits: dict[str, Any]
    safety: ModelSafetyShape


class ModelsShape(Answer):
    object: Literal["list"]
    data: list[ModelShape]


PROBLEM_ANSWERS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": description,
        "content": {"application/problem+json": {"schema": ProblemShape.model_json_schema()}},
    }
    for status, description in (("4XX", "Refused: the problem says why."), ("5XX", "Try again later."))
}


class ClaimedShape(Answer):
    leases: list[Lease]


class OpenAIErrorShape(Answer):
    message: str
    type: str
    param: str | None
    code: str


class OpenAIErrorEnvelope(Answer):
    error: OpenAIErrorShape


OPENAI_ANSWERS: dict[int | str, dict[str, Any]] = {
    status: {"description": "OpenAI's error envelope.", "model": OpenAIErrorEnvelope}
    for status in ("4XX", "5XX")
}


class ImageShape(Answer):
    b64_json: str | None = None
    url: str | None = None


class UsageShape(Answer):
    """Tokens as the model packs them."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    total_tokens: int


class ImagesShape(Answer):
    created: int
    background: str
    output_format: str
    size: str
    data: list[ImageShape]
    usage: UsageShape


class AcceptedShape(Answer):
    job_id: str
    status: str
    queue_position: int | None = Field(description="1 is next.")
    estimated_time: float | None = Field(description="Seconds until it is likely finished.")


class FlatJobShape(Answer):
    job_id: str
    status: Literal["pending", "processing", "completed", "failed", "cancelled"]
    progress: float = Field(description="In 0…1.")
    image_url: str | None
    error: str | None
