"""The protocol between the agent and its engine process: a line of JSON a message, over a Unix socket.

The engine process connects, sends `ModelAnnounced` as soon as it has read the model's configs,
`EngineLoading` while it loads, then `EngineReady` or, if it cannot serve the model, `EngineRefused`; and
`EngineHeartbeat` every second from a thread of its own. The end of the stream means that the other process
has ended. An `attempt` is the agent's name for one lease on a job: a job may be leased again while its last
attempt is still being dropped, and messages about the two must not be confused. The agent and the zygote,
from which engine processes are forked, exchange lines of the same kind over a pair of sockets.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, get_args

import orjson

from diffuserve.domain.codec import from_values
from diffuserve.domain.models.cost import CostFit
from diffuserve.domain.models.quantization import Quantization
from diffuserve.domain.models.residency import RESIDENT, Residency
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.safety import FilterInfo
from diffuserve.domain.workers.model_orders import ModelToHave
from diffuserve.protocol.peer_messages import PeerAnnounced, PeersTold
from diffuserve.protocol.zygote_messages import ForkEngine, FromZygote


@dataclass(frozen=True, kw_only=True)
class ModelAnnounced:
    """The engine loads this model, whose family has this default fit.

    `reference` names exactly this version of it. `num_bytes` is the size of its weights' files, or 0 if it is
    not known yet, and `quantization` what they will be kept in, `None` if that is not known.
    """

    spec: ModelSpec
    fit: CostFit | None = None
    reference: str = ""
    num_bytes: int = 0
    quantization: Quantization | None = None


@dataclass(frozen=True, kw_only=True)
class EngineLoading:
    """The engine is in this phase of its start; while it reads weights, with the bytes read so far."""

    phase: str
    bytes_read: int = 0
    bytes_total: int = 0


@dataclass(frozen=True, kw_only=True)
class EngineReady:
    """The model is loaded; `token_budget` tokens a step saturate the device.

    `image_filter` checks every image; `None` if no filter is set. `description` is for people to read.
    `quantization` is what the weights are kept in, and `residency` where they are. `memory_limit_bytes` is
    the device's memory, 0 if it has none of its own.
    """

    token_budget: int
    num_gpus: int = 0
    device_name: str = ""
    description: Mapping[str, str] = field(default_factory=dict)
    image_filter: FilterInfo | None = None
    quantization: Quantization = Quantization.NONE
    residency: Residency = RESIDENT
    memory_limit_bytes: int = 0


@dataclass(frozen=True)
class ModelsToHave:
    """What orders of operators may name on this machine."""

    models: tuple[ModelToHave, ...]


@dataclass(frozen=True, kw_only=True)
class EngineRefused:
    """The engine cannot serve this model here, now or after a restart; the process ends."""

    reason: str


@dataclass(frozen=True)
class MeanStep:
    """Requests, tokens and duration of a denoising step, each the mean of several steps."""

    num_requests: float
    num_tokens: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class EngineHeartbeat:
    """The engine is alive. `num_moves` counts steps and finished jobs: while there is work it must grow.

    There is none while all of `num_unfinished` are `num_awaiting`: requests whose adapters are being loaded.
    `num_steps`, and the requests, tokens and seconds of these steps, count since the engine started.
    `predicted_seconds` is the predicted duration of the current work. `memory_limit_bytes` is 0 if the
    device has no memory of its own. `adapters` are the digests of those in memory, the most recently used
    first. An engine that follows an objective tells the tokens that a step may have now, and the share of
    the latest requests, in 0…1, that kept it.
    """

    num_moves: int
    num_unfinished: int
    num_awaiting: int = 0
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    last_step_seconds: float | None = None
    longest_step_seconds: float = 0.0
    predicted_seconds: float = 0.0
    num_steps: int = 0
    num_request_steps: int = 0
    num_step_tokens: int = 0
    denoise_seconds: float = 0.0
    fit: CostFit | None = None
    adapters: tuple[str, ...] = ()
    adaptive_limit: int | None = None
    good_share: float | None = None

    def mean_batch_since(self, before: "EngineHeartbeat | None") -> float | None:
        """Return the mean number of requests in a step since an earlier heartbeat; `None` without a step."""
        steps = self.steps_since(before)
        return None if steps is None else steps.num_requests

    def steps_since(self, before: "EngineHeartbeat | None") -> "MeanStep | None":
        """Return the mean of the steps since an earlier heartbeat; `None` without a step.

        An engine that was started anew meanwhile counts from 0 again.
        """
        if before is None or before.num_steps > self.num_steps:
            before = EngineHeartbeat(num_moves=0, num_unfinished=0)
        num_steps = self.num_steps - before.num_steps
        if not num_steps:
            return None
        return MeanStep(
            num_requests=(self.num_request_steps - before.num_request_steps) / num_steps,
            num_tokens=(self.num_step_tokens - before.num_step_tokens) / num_steps,
            seconds=(self.denoise_seconds - before.denoise_seconds) / num_steps,
        )


@dataclass(frozen=True, kw_only=True)
class StepProgress:
    """A job entered a phase, finished a denoising step, or had frames of its clips decoded.

    `step` of `total` are denoising steps in every phase; `frames` of `num_frames`, of all clips of the job
    together, are decoded: 0 of 0 for images.
    """

    attempt: str
    phase: str
    step: int = 0
    total: int = 0
    frames: int = 0
    num_frames: int = 0


@dataclass(frozen=True, kw_only=True)
class StepTaken:
    """Tells which attempts shared a denoising step, which began at a time in seconds since the epoch.

    It is sent for a sample of the steps that include traced jobs.
    """

    attempts: tuple[str, ...]
    began_at: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class PreviewReady:
    """Preview number `index` of the unfinished image number `image`; `png` is base64."""

    attempt: str
    image: int
    index: int
    step: int
    total: int
    png: str


@dataclass(frozen=True, kw_only=True)
class LivePart:
    """The next part of a live job's first clip is a file at `path`, which the agent deletes once uploaded."""

    attempt: str
    number: int
    path: str


@dataclass(frozen=True, kw_only=True)
class LiveDropped:
    """A live job's clip may no longer be shown; parts already shown are withdrawn."""

    attempt: str


@dataclass(frozen=True, kw_only=True)
class FilterVerdict:
    """A filter checked an image, a sound or all of a clip: `stage` is "image", "video", "sound" or "preview".

    `category` is that of the finding that decided, "" if there was none.
    """

    attempt: str
    stage: str
    action: str
    category: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class FinishedFile:
    """A file to upload; the agent deletes it afterwards."""

    path: str
    name: str
    content_type: str
    width: int | None = None
    height: int | None = None
    index: int = 0
    role: str = "image"
    seed: int | None = None
    num_frames: int | None = None
    fps: int | None = None
    seconds: float | None = None
    channels: int | None = None
    sample_rate: int | None = None


@dataclass(frozen=True, kw_only=True)
class JobFinished:
    """A job's files are written.

    `actual_seconds` are the device-seconds that it took; `safety` is the image filter's record.
    """

    attempt: str
    files: tuple[FinishedFile, ...] = ()
    input: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)
    actual_seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    safety: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class JobDenoised:
    """A job's finished latents are in the file at `path`, from weights of the hash `weights`."""

    attempt: str
    path: str
    weights: str
    actual_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class CheckpointReady:
    """A job's checkpoint after `step` steps is the file at `path`, which the agent deletes.

    If it `is_last`, the job was preempted: the engine has dropped it. There is no `path` if it was preempted
    without a checkpoint. `seconds` are the device-seconds in the checkpoint.
    """

    attempt: str
    path: str = ""
    step: int = 0
    seconds: float = 0.0
    is_last: bool = False


@dataclass(frozen=True, kw_only=True)
class JobFailed:
    """A job ended without files, after so many device-seconds. `retryable` if another attempt may succeed."""

    attempt: str
    code: str
    message: str
    retryable: bool = False
    safety: Mapping[str, Any] = field(default_factory=dict)
    actual_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class AddJob:
    """Generate a job's images into `folder`.

    Jobs of a larger `priority` step first; a job that `is_alone` shares no step with others. The first clip
    of a `live` job is also sent in parts. `files` maps the ids of its input files to their paths: with
    finished latents (`LATENTS_ID`) it is only decoded, and with a checkpoint (`CHECKPOINT_ID`) it is resumed;
    files of adapters have their digests as ids. Adapters of each `tenant` are loaded in turn.
    With `until` "latents" it is not decoded. The engine sends a checkpoint every `checkpoint_seconds`, or
    none for 0. `log_names` are fields of log lines about the job. Steps of a job that `is_traced` are
    sampled.
    """

    attempt: str
    input: Mapping[str, Any]
    folder: str
    priority: int = 0
    is_alone: bool = False
    num_previews: int = 0
    live: bool = False
    output_format: str = "png"
    files: Mapping[str, str] = field(default_factory=dict)
    until: str = "files"
    checkpoint_seconds: float = 0.0
    log_names: Mapping[str, str] = field(default_factory=dict)
    is_traced: bool = False
    tenant: str = ""


@dataclass(frozen=True, kw_only=True)
class AbortJob:
    """Drop a job before its next step. The engine responds with `JobFailed` of code `aborted`."""

    attempt: str


@dataclass(frozen=True, kw_only=True)
class PreemptJob:
    """Give a last checkpoint of a job and drop it. The engine responds with `CheckpointReady`."""

    attempt: str


@dataclass(frozen=True)
class StopEngine:
    """Save the cost fit, and exit."""


JobMessage: TypeAlias = (
    StepProgress
    | PreviewReady
    | LivePart
    | LiveDropped
    | FilterVerdict
    | JobFinished
    | JobDenoised
    | CheckpointReady
    | JobFailed
)
"""The messages of an engine about one job."""
EngineReport: TypeAlias = JobMessage | StepTaken
"""The messages of an engine about the jobs within it."""

FromEngine: TypeAlias = (
    ModelAnnounced
    | EngineLoading
    | EngineReady
    | EngineRefused
    | EngineHeartbeat
    | PeerAnnounced
    | EngineReport
)
ToEngine: TypeAlias = AddJob | AbortJob | PreemptJob | StopEngine
Message: TypeAlias = FromEngine | ToEngine | PeersTold | FromZygote | ForkEngine | ModelsToHave

_KINDS: Mapping[str, type[Message]] = {kind.__name__: kind for kind in get_args(Message)}

MAX_LINE_BYTES = 64 * 1024 * 1024
"""The longest line that is read; previews are the longest messages."""


def encode(message: Message) -> bytes:
    """Return the message as one line: the name of its class, and its fields."""
    return orjson.dumps((type(message).__name__, message)) + b"\n"


def decode(line: bytes) -> Message:
    """Return the message of one line. Raise `ValueError` for a line that is none."""
    match orjson.loads(line):
        case [str(name), values] if name in _KINDS:
            return from_values(_KINDS[name], values)
    raise ValueError(f"not a message: {line[:80]!r}")
