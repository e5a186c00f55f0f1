"""Spans of jobs that no request covers."""

from collections.abc import Iterable

from diffuserve.domain.trace_context import TraceContext
from diffuserve.domain.workers.worker import Lease
from diffuserve.telemetry.tracing import Tracer, attributes_of


def record_queueing(tracer: Tracer, leases: Iterable[Lease]) -> None:
    """Record how long jobs waited that are leased for the first time."""
    for lease in leases:
        if lease.attempt == 1 and (parent := TraceContext.parse(lease.traceparent)) is not None:
            tracer.start("job.queue", parent, attributes_of(lease), at=lease.created_at).end()
