"""Spans of jobs that no request covers."""

from collections.abc import Iterable

from diffuserve.domain.trace_context import TraceContext
from diffuserve.domain.worker import Lease
from diffuserve.telemetry.tracing import JOB_ID, MODEL, TENANT, WORKER_ID, Tracer


def record_queueing(tracer: Tracer, leases: Iterable[Lease]) -> None:
    """Record how long jobs waited that are leased for the first time."""
    for lease in leases:
        if lease.attempt == 1 and (parent := TraceContext.parse(lease.traceparent)) is not None:
            attributes = {JOB_ID: lease.job_id, TENANT: lease.tenant_id, MODEL: lease.model}
            attributes[WORKER_ID] = lease.worker_id or ""
            tracer.start("job.queue", parent, attributes, at=lease.created_at).end()
