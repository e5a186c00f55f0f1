"""Taking jobs in: the job, its first event, its key and its place in the queue in one transaction."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.errors import BacklogFull, DiffuserveError, IdempotencyMismatch, JobNotFound, QueueFull
from diffuserve.domain.job import Job, JobStatus, NewJob
from diffuserve.domain.tenant import Tenant
from diffuserve.jobs import queries, queue, schema
from diffuserve.jobs.database import Transaction
from diffuserve.jobs.records import JobRecord, dump, event_row

tenants = schema.tenants
_RETRY_AFTER_SECONDS = 5.0


@dataclass(frozen=True)
class Submission:
    """A new job and the id that it will have: submitting it twice stores it once."""

    job_id: str
    new: NewJob


@dataclass
class _Account:
    """A tenant's counters while a transaction hands out places."""

    tenant: Tenant
    next_seq: int
    num_queued: int
    vtime: float


@dataclass
class _Intake:
    """What of a batch is accepted."""

    jobs: dict[str, Job] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    records: list[JobRecord] = field(default_factory=list)
    keys: list[dict[str, Any]] = field(default_factory=list)


def submit(transaction: Transaction, submissions: Sequence[Submission]) -> Sequence[Job | DiffuserveError]:
    known = _known_keys(transaction, submissions)
    stored = _already_stored(transaction, submissions) if transaction.is_retry else {}
    accounts = _open_accounts(transaction, {one.new.tenant_id for one in submissions})
    floors = {(row.band, row.model): row.vtime for row in transaction.rows(sa.select(schema.floors))}
    backlog = _backlog_seconds(transaction)

    intake = _Intake()
    outcomes: list[str | DiffuserveError] = []
    for one in submissions:
        new, account = one.new, accounts[one.new.tenant_id]
        earlier = known.get((new.tenant_id, new.idempotency_key or ""))
        if one.job_id in stored:
            outcomes.append(one.job_id)
        elif earlier is not None:
            outcomes.append(_repeated(new, *earlier))
        elif (refusal := _refusal(new, account, backlog, transaction)) is not None:
            outcomes.append(refusal)
        else:
            _accept(transaction, one, account, floors.get((new.band, new.model), 0.0), intake)
            backlog += new.cost_seconds
            if new.idempotency_key:
                known[new.tenant_id, new.idempotency_key] = (new.fingerprint, one.job_id)
            outcomes.append(one.job_id)
    _store(transaction, intake, accounts)
    return _answers(transaction, outcomes, intake.jobs)


def _known_keys(
    transaction: Transaction, submissions: Sequence[Submission]
) -> dict[tuple[str, str], tuple[str, str]]:
    """Fingerprint and job of every key that was used lately."""
    keys = schema.idempotency_keys
    wanted = [one.new.idempotency_key for one in submissions if one.new.idempotency_key]
    if not wanted:
        return {}
    since = transaction.now - transaction.config.idempotency_seconds
    rows = transaction.rows(
        sa.select(keys).where(
            keys.c.tenant_id.in_({one.new.tenant_id for one in submissions}),
            keys.c.key.in_(wanted),
            keys.c.created_at > since,
        )
    )
    return {(row.tenant_id, row.key): (row.fingerprint, row.job_id) for row in rows}


def _already_stored(transaction: Transaction, submissions: Sequence[Submission]) -> set[str]:
    wanted = [one.job_id for one in submissions]
    return {
        row.id for row in transaction.rows(sa.select(schema.jobs.c.id).where(schema.jobs.c.id.in_(wanted)))
    }


def _open_accounts(transaction: Transaction, tenant_ids: set[str]) -> dict[str, _Account]:
    wanted = sorted(tenant_ids)
    statement = sa.select(tenants).where(tenants.c.id.in_(wanted))
    rows = transaction.rows(statement)
    missing = tenant_ids - {row.id for row in rows}
    if missing:
        transaction.execute(sa.insert(tenants), [{"id": one} for one in sorted(missing)])
        rows = transaction.rows(statement)
    return {
        row.id: _Account(queue.tenant_of(row, transaction.config), row.next_seq, row.num_queued, row.vtime)
        for row in rows
    }


def _backlog_seconds(transaction: Transaction) -> float:
    rows = transaction.rows(sa.select(sa.func.coalesce(sa.func.sum(schema.lanes.c.work_seconds), 0.0)))
    return float(rows[0][0])


def _repeated(new: NewJob, fingerprint: str, job_id: str) -> str | DiffuserveError:
    if fingerprint == new.fingerprint:
        return job_id
    return IdempotencyMismatch(
        f"Idempotency-Key {new.idempotency_key!r} was used with another body; use a new key for a new job"
    )


def _refusal(
    new: NewJob, account: _Account, backlog: float, transaction: Transaction
) -> DiffuserveError | None:
    limit = account.tenant.plan.max_queued
    if account.num_queued >= limit:
        return QueueFull(
            f"tenant {new.tenant_id!r} has {account.num_queued:,} jobs queued, and its plan "
            f"{account.tenant.plan.name!r} allows {limit:,}; wait until some have started",
            retry_after=max(_RETRY_AFTER_SECONDS, new.cost_seconds),
        )
    if backlog + new.cost_seconds > transaction.config.max_backlog_seconds:
        return BacklogFull(
            f"{backlog:,.0f} s of work wait already; try again later",
            retry_after=max(_RETRY_AFTER_SECONDS, min(backlog / 100, 300.0)),
        )
    return None


def _accept(
    transaction: Transaction, one: Submission, account: _Account, floor: float, intake: _Intake
) -> None:
    new, now = one.new, transaction.now
    if account.num_queued == 0:  # it was idle, which earns no credit
        account.vtime = max(account.vtime, floor)
    account.next_seq += 1
    account.num_queued += 1
    deadline = None if new.expires_in is None else now + new.expires_in
    intake.rows.append(_job_row(one, account.next_seq, now, deadline))
    intake.records.append(_record(one, account.next_seq, now, deadline))
    intake.jobs[one.job_id] = _job(one, now, deadline)
    if new.idempotency_key:
        key = {"tenant_id": new.tenant_id, "key": new.idempotency_key, "fingerprint": new.fingerprint}
        intake.keys.append(key | {"job_id": one.job_id, "created_at": now})


def _store(transaction: Transaction, intake: _Intake, accounts: dict[str, _Account]) -> None:
    if not intake.rows:
        return
    transaction.execute(sa.insert(schema.jobs), intake.rows)
    events = [event_row(record, "queued", {}, transaction.now) for record in intake.records]
    transaction.execute(sa.insert(schema.job_events), events)
    _store_keys(transaction, intake.keys)
    transaction.execute(
        sa.update(tenants)
        .where(tenants.c.id == sa.bindparam("tenant"))
        .values({name: sa.bindparam(f"new_{name}") for name in ("next_seq", "num_queued", "vtime")}),
        [
            {
                "tenant": account.tenant.id,
                "new_next_seq": account.next_seq,
                "new_num_queued": account.num_queued,
                "new_vtime": account.vtime,
            }
            for account in accounts.values()
        ],
    )
    queue.put(transaction, intake.records)


def _store_keys(transaction: Transaction, keys: list[dict[str, Any]]) -> None:
    if not keys:
        return
    insert = transaction.upsert(schema.idempotency_keys)
    fresh = {name: insert.excluded[name] for name in ("fingerprint", "job_id", "created_at")}
    # What is there already is older than a key is kept.
    transaction.execute(insert.on_conflict_do_update(index_elements=["tenant_id", "key"], set_=fresh), keys)


def _answers(
    transaction: Transaction, outcomes: Sequence[str | DiffuserveError], fresh: dict[str, Job]
) -> list[Job | DiffuserveError]:
    earlier = {one for one in outcomes if isinstance(one, str) and one not in fresh}
    jobs = fresh | queries.find_jobs(transaction, earlier)
    return [_found(jobs, one) if isinstance(one, str) else one for one in outcomes]


def _found(jobs: dict[str, Job], job_id: str) -> Job | DiffuserveError:
    return jobs.get(job_id) or JobNotFound(f"job {job_id}, which this key stands for, was deleted")


def _job_row(one: Submission, seq: int, now: float, deadline: float | None) -> dict[str, Any]:
    new = one.new
    return {
        "id": one.job_id,
        "tenant_id": new.tenant_id,
        "kind": new.kind,
        "model": new.model,
        "status": JobStatus.QUEUED,
        "band": new.band,
        "input": dump(new.input),
        "metadata": dump(new.metadata),
        "output_format": new.output_format,
        "num_previews": new.num_previews,
        "cost_seconds": new.cost_seconds,
        "step_tokens": new.step_tokens,
        "timeout": new.timeout,
        "deadline": deadline,
        "seq": seq,
        "num_events": 1,
        "version": 1,
        "created_at": now,
    }


def _record(one: Submission, seq: int, now: float, deadline: float | None) -> JobRecord:
    new = one.new
    return JobRecord(
        id=one.job_id,
        tenant_id=new.tenant_id,
        model=new.model,
        band=new.band,
        seq=seq,
        cost_seconds=new.cost_seconds,
        step_tokens=new.step_tokens,
        timeout=new.timeout,
        deadline=deadline,
        created_at=now,
        status=JobStatus.QUEUED,
        attempt=0,
        lease_token=0,
        num_transient=0,
        num_worker_lost=0,
        num_events=1,
        version=1,
        worker_id=None,
        started_at=None,
        finished_at=None,
        actual_seconds=None,
        result=None,
        error=None,
        is_erased=False,
    )


def _job(one: Submission, now: float, deadline: float | None) -> Job:
    new = one.new
    return Job(
        id=one.job_id,
        tenant_id=new.tenant_id,
        kind=new.kind,
        model=new.model,
        status=JobStatus.QUEUED,
        band=new.band,
        input=new.input,
        metadata=new.metadata,
        cost_seconds=new.cost_seconds,
        step_tokens=new.step_tokens,
        attempt=0,
        lease_token=0,
        version=1,
        created_at=now,
        num_previews=new.num_previews,
        output_format=new.output_format,
        timeout=new.timeout,
        deadline=deadline,
    )
