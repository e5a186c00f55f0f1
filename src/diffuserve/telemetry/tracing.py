"""Traces: spans of a job's way from its submission to its end.

Nothing of OpenTelemetry is imported here: without `--trace-endpoint` a process records no span, imports no
SDK, and only passes on the contexts that requests and jobs bring.
"""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from enum import StrEnum
from typing import TYPE_CHECKING

from diffuserve.domain.trace_context import TraceContext
from diffuserve.telemetry import log_context

if TYPE_CHECKING:
    from diffuserve.domain.workers.worker import Lease

AttributeValue = str | bool | int | float
Attributes = Mapping[str, AttributeValue]

# Names of attributes. What OpenTelemetry has no name for begins with the product's.
JOB_ID = "diffuserve.job.id"
TENANT = "diffuserve.tenant"
MODEL = "diffuserve.model"
ATTEMPT = "diffuserve.attempt"
WORKER_ID = "diffuserve.worker.id"
STATUS = "diffuserve.status"
NUM_JOBS = "diffuserve.num_jobs"
ERROR_TYPE = "error.type"
HTTP_METHOD = "http.request.method"
HTTP_ROUTE = "http.route"
HTTP_STATUS = "http.response.status_code"

_CURRENT: ContextVar[TraceContext | None] = ContextVar("diffuserve_trace", default=None)


class SpanKind(StrEnum):
    """Part that a span has in its trace, by OpenTelemetry's names."""

    INTERNAL = "internal"
    SERVER = "server"
    CONSUMER = "consumer"


class Span:
    """An operation of a trace. This one is not recorded; `context` is what belongs to it gets."""

    def __init__(self, context: TraceContext | None = None) -> None:
        self.context = context

    @property
    def is_recorded(self) -> bool:
        return False

    def rename(self, name: str) -> None:
        """Give the span a name that was not known when it began."""

    def set(self, attributes: Attributes) -> None:
        """Add attributes."""

    def fail(self, kind: str) -> None:
        """Mark the operation as failed, for a reason that has a short and stable name."""

    def end(self, at: float | None = None) -> None:
        """Record that the operation ends now, or at a time in seconds since the epoch."""


class Tracer:
    """Makes spans. This one records none, and its spans have the contexts that they are given as parents."""

    def start(
        self,
        name: str,
        parent: TraceContext | None,
        attributes: Attributes | None = None,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Sequence[TraceContext] = (),
        at: float | None = None,
    ) -> Span:
        """Return a span that begins now, or at a time in seconds since the epoch.

        Without a parent it begins a trace: recorded if a span that it links to is, else with the ratio's
        probability. With a parent it is recorded if that is.
        """
        return Span(parent)

    def begins_traces(self) -> bool:
        """Return whether a span without a parent is of any use."""
        return False

    async def close(self) -> None:
        """Send what was recorded, within a few seconds."""


OFF = Tracer()
"""The tracer of a process that records nothing."""


def enter(context: TraceContext | None) -> None:
    """Let the current task, and those that it starts, belong to a span; their lines name its trace."""
    if context is not None:
        _CURRENT.set(context)
        log_context.bind(trace_id=context.trace_id)


def current() -> TraceContext | None:
    """Return the span that the current task belongs to."""
    return _CURRENT.get()


def attributes_of(lease: "Lease") -> Attributes:
    """Return what a span about a leased job says of it."""
    return {
        JOB_ID: lease.job_id,
        TENANT: lease.tenant_id,
        MODEL: lease.model,
        WORKER_ID: lease.worker_id or "",
    }


def trace_id_of(traceparent: str | None) -> str | None:
    """Return the id of the trace that a `traceparent` names, if it does."""
    context = TraceContext.parse(traceparent)
    return None if context is None else context.trace_id
