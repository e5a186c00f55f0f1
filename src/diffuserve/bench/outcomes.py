"""What became of a request, as the client saw it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from diffuserve.bench.load_request import LoadRequest


class Trouble(StrEnum):
    """Kinds of failure."""

    CONNECT = "could not connect"
    BROKEN = "connection broke"
    TIMEOUT = "took too long"
    REFUSED = "refused"
    OVERLOADED = "overloaded"
    FAILED = "failed"
    WRONG_OUTPUT = "wrong output"


class RequestFault(Exception):
    """A request has no result; `detail` is a code or a status where the server told one."""

    def __init__(self, trouble: Trouble, detail: str = "") -> None:
        super().__init__(f"{trouble}: {detail}" if detail else str(trouble))
        self.trouble = trouble
        self.detail = detail


@dataclass(frozen=True)
class Output:
    """The bytes of an image or a clip."""

    content: bytes


@dataclass(frozen=True)
class Reply:
    """The outputs, and the seconds of each phase that the server told."""

    outputs: tuple[Output, ...]
    phases: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RequestOutcome:
    """A request with its times, in seconds since the load began.

    `due` is when it should have been sent, and latencies count from there: a client that a slow server holds
    up does not forgive it (coordinated omission). `error` is None for a request whose outputs are right.
    """

    asked: LoadRequest
    due: float
    sent: float
    ended: float
    phases: Mapping[str, float] = field(default_factory=dict)
    num_outputs: int = 0
    error: RequestFault | None = None

    @property
    def latency(self) -> float | None:
        """Seconds from the due time to the last byte; None if it failed."""
        return None if self.error else self.ended - self.due
