"""What the agent and its engine process say to each other: one JSON object a line.

The engine process connects to the agent's Unix socket, says `Hello` as soon as it knows its model,
`Ready` once that is loaded, and `Beat` every second from a thread of its own. Whoever sees the end
of the stream knows that the other is dead. An `attempt` is the agent's name for one lease on a job:
a job may come back while its last attempt is still being dropped, and their news must not be mixed up.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import orjson


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The model: its `ModelSpec` and its family's default `CostFit`, as dicts."""

    spec: Mapping[str, Any]
    fit: Mapping[str, Any] | None = None
    num_gpus: int = 0


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The model is loaded; at `token_budget` tokens a step the device is busy.

    `image_filter` is the `FilterInfo` of what looks at every image, as a dict; `None`: nothing does.
    """

    token_budget: int
    description: Mapping[str, str] = field(default_factory=dict)
    image_filter: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Beat:
    """A sign of life. `num_moves` counts everything that ever advanced: while there is work it must grow."""

    num_moves: int
    num_unfinished: int
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    last_step_seconds: float | None = None
    longest_step_seconds: float = 0.0
    num_steps: int = 0
    num_request_steps: int = 0
    fit: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Moved:
    """A job entered a phase, or finished a denoising step."""

    attempt: str
    phase: str
    step: int = 0
    total: int = 0


@dataclass(frozen=True, kw_only=True)
class Previewed:
    """An image on the way: PNG in base64."""

    attempt: str
    index: int
    step: int
    total: int
    png: str


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The image filter saw an image, or by `stage` a preview. `category` is that of what it found."""

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
    width: int
    height: int
    index: int = 0
    role: str = "image"
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class Done:
    """A job's files are written. `actual_seconds` is its share of the busy device; `safety` is the
    filter's record."""

    attempt: str
    files: tuple[FinishedFile, ...] = ()
    input: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)
    actual_seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    safety: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Failed:
    attempt: str
    code: str
    message: str
    retryable: bool = False
    safety: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Add:
    """A job for the engine, whose files go into `folder`; larger `priority` steps first, and who
    `is_alone` shares no step."""

    attempt: str
    input: Mapping[str, Any]
    folder: str
    priority: int = 0
    is_alone: bool = False
    num_previews: int = 0
    output_format: str = "png"


@dataclass(frozen=True, kw_only=True)
class Abort:
    """Drop a job before its next step. It is answered by `Failed` with code `aborted`."""

    attempt: str


@dataclass(frozen=True)
class Stop:
    """Save what was learnt, and exit."""


FromEngine: TypeAlias = Hello | Ready | Beat | Moved | Previewed | Judged | Done | Failed
ToEngine: TypeAlias = Add | Abort | Stop
Message: TypeAlias = FromEngine | ToEngine

_KINDS: Mapping[str, type[Message]] = {
    kind.__name__.lower(): kind
    for kind in (Hello, Ready, Beat, Moved, Previewed, Judged, Done, Failed, Add, Abort, Stop)
}
MAX_LINE_BYTES = 64 * 1024 * 1024
"""Previews are the longest messages."""


def encode(message: Message) -> bytes:
    """One line."""
    return orjson.dumps({"kind": type(message).__name__.lower()} | asdict(message)) + b"\n"


def decode(line: bytes) -> Message:
    """Raises `ValueError` for what is no message."""
    values = orjson.loads(line)
    kind = _KINDS.get(values.pop("kind", None))
    if kind is None:
        raise ValueError(f"not a message: {line[:80]!r}")
    if kind is Done:
        files = tuple(FinishedFile(**file) for file in values.pop("files"))
        return Done(files=files, warnings=tuple(values.pop("warnings")), **values)
    return kind(**values)
