"""Statements that read jobs and their logs."""

import re
from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.errors import JobNotFound
from diffuserve.domain.jobs.job import Job, JobStatus, Phase, Progress, Revision
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.connections import IDS, Database, Transaction
from diffuserve.jobs.records import job_of, record_of

jobs, leases = schema.jobs, schema.leases

JOBS = (
    sa.select(jobs, leases.c.phase, leases.c.step, leases.c.total)
    .join_from(jobs, leases, leases.c.job_id == jobs.c.id, isouter=True)
    .where(sa.not_(jobs.c.is_erased))
)

REVISIONS = (
    sa.select(jobs.c.id, jobs.c.version, leases.c.phase, leases.c.step, leases.c.total)
    .join_from(jobs, leases, leases.c.job_id == jobs.c.id, isouter=True)
    .where(sa.not_(jobs.c.is_erased))
)

JOBS_BY_ID, REVISIONS_BY_ID = (statement.where(jobs.c.id.in_(IDS)) for statement in (JOBS, REVISIONS))

_IDS_AT_ONCE = 500  # in one statement: a reader's thread is busy with it for some milliseconds
_JOB_ID = re.compile(r"job_[0-9a-f]{1,40}")


def is_job_id(text: str) -> bool:
    """Return whether a job could have this id."""
    return _JOB_ID.fullmatch(text) is not None


def check_job_id(job_id: str) -> str:
    """Return `job_id`. Raise `JobNotFound` if no job can have it.

    Other text must not reach the database, which may refuse it: PostgreSQL takes no NUL.
    """
    if not is_job_id(job_id):
        raise JobNotFound(f"no job {job_id!r}")
    return job_id


def job_in(row: sa.Row[Any]) -> Job:
    """Return the job in a row of `JOBS`."""
    progress = Progress(row.step, row.total) if row.total else None
    return job_of(record_of(row), row.phase, progress)


def revision_in(row: sa.Row[Any]) -> Revision:
    """Return the revision in a row of `REVISIONS`; it equals the `revision` of the same row's job."""
    return Revision(
        row.version, None if row.phase is None else Phase(row.phase), row.step if row.total else None
    )


async def rows_of(database: Database, statement: sa.Select[Any], ids: Collection[str]) -> list[sa.Row[Any]]:
    """Return the rows of a statement with the parameter `IDS`, read some hundred ids at a time."""
    wanted, rows = list(ids), list[sa.Row[Any]]()
    for start in range(0, len(wanted), _IDS_AT_ONCE):
        rows += await database.rows(statement, {"ids": wanted[start : start + _IDS_AT_ONCE]})
    return rows


async def read_job(database: Database, job_id: str, tenant_id: str | None = None) -> Job:
    """Return the job. Raise `JobNotFound` also for a job of another tenant than `tenant_id`."""
    rows = await database.rows(JOBS_BY_ID, {"ids": [check_job_id(job_id)]})
    if not rows or tenant_id not in (None, rows[0].tenant_id):
        raise JobNotFound(f"no job {job_id}")
    return job_in(rows[0])


def find_jobs(transaction: Transaction, job_ids: Collection[str]) -> dict[str, Job]:
    """Return those of the jobs that exist, by id."""
    if not job_ids:
        return {}
    return {row.id: job_in(row) for row in transaction.rows(JOBS_BY_ID, {"ids": list(job_ids)})}


def page_of_jobs(
    tenant_id: str | None,
    statuses: Collection[JobStatus],
    kind: str | None,
    after: str | None,
    oldest_first: bool,
) -> sa.Select[Any]:
    """Select newest first, or oldest first: ids sort by the time of their creation."""
    statement = JOBS.order_by(jobs.c.id.asc() if oldest_first else jobs.c.id.desc())
    if kind is not None:  # a literal, not a parameter, so that an index on one kind can be used
        statement = statement.where(jobs.c.kind == sa.literal(kind, literal_execute=True))
    if tenant_id is not None:
        statement = statement.where(jobs.c.tenant_id == tenant_id)
    if statuses:
        statement = statement.where(jobs.c.status.in_(list(statuses)))
    if after is not None:
        statement = statement.where(jobs.c.id > after if oldest_first else jobs.c.id < after)
    return statement


def events_of(job_id: str, seq: int) -> sa.Select[Any]:
    """Select the job's log entries after entry `seq`."""
    events = schema.job_events
    return sa.select(events).where(events.c.job_id == job_id, events.c.seq > seq).order_by(events.c.seq)
