"""Reading jobs and their logs."""

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.job import Job, JobStatus
from diffuserve.jobs import schema
from diffuserve.jobs.database import Transaction
from diffuserve.jobs.records import job_of

jobs, leases = schema.jobs, schema.leases

JOBS = (
    sa.select(jobs, leases.c.phase, leases.c.step, leases.c.total)
    .join_from(jobs, leases, leases.c.job_id == jobs.c.id, isouter=True)
    .where(sa.not_(jobs.c.is_erased))
)


def job_named(job_id: str) -> sa.Select[Any]:
    return JOBS.where(jobs.c.id == job_id)


def find_jobs(transaction: Transaction, job_ids: Collection[str]) -> dict[str, Job]:
    if not job_ids:
        return {}
    return {row.id: job_of(row) for row in transaction.rows(JOBS.where(jobs.c.id.in_(list(job_ids))))}


def page_of_jobs(
    tenant_id: str | None, statuses: Collection[JobStatus], after: str | None, limit: int
) -> sa.Select[Any]:
    """Newest first: ids are made in the order of time."""
    statement = JOBS.order_by(jobs.c.id.desc()).limit(limit)
    if tenant_id is not None:
        statement = statement.where(jobs.c.tenant_id == tenant_id)
    if statuses:
        statement = statement.where(jobs.c.status.in_(list(statuses)))
    if after is not None:
        statement = statement.where(jobs.c.id < after)
    return statement


def events_of(job_id: str, seq: int) -> sa.Select[Any]:
    events = schema.job_events
    return sa.select(events).where(events.c.job_id == job_id, events.c.seq > seq).order_by(events.c.seq)
