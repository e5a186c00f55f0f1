"""The books of those who submit: what waits already, and the rows of what is taken in."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.batch import NewBatch
from diffuserve.domain.errors import BacklogFull, DiffuserveError, QueueFull, TooLarge
from diffuserve.domain.job import Job, JobStatus, NewJob
from diffuserve.domain.safety import AuditEntry
from diffuserve.domain.tenant import Plan, Tenant
from diffuserve.jobs import audit, idempotency, queue, schema
from diffuserve.jobs.database import Transaction
from diffuserve.jobs.idempotency import Stamp
from diffuserve.jobs.records import JobRecord, dump, event_row
from diffuserve.jobs.webhooks.outbox import dump_webhook

tenants = schema.tenants
_RETRY_AFTER_SECONDS = 5.0


@dataclass(frozen=True)
class Submission:
    """A new job and the id that it will have: submitting it twice stores it once."""

    job_id: str
    new: NewJob


@dataclass
class Account:
    """A tenant's counters while a transaction hands out places."""

    tenant: Tenant
    next_seq: int
    num_queued: int
    queued_seconds: float
    vtime: float


@dataclass
class Admission:
    """All that a transaction reads to take jobs in, and what it will write of them."""

    transaction: Transaction
    accounts: dict[str, Account]
    floors: dict[tuple[str, str], float]
    backlog_seconds: float
    jobs: dict[str, Job] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    records: list[JobRecord] = field(default_factory=list)
    keys: list[dict[str, Any]] = field(default_factory=list)
    flagged: list[AuditEntry] = field(default_factory=list)

    @classmethod
    def open(cls, transaction: Transaction, tenant_ids: set[str]) -> "Admission":
        floors = transaction.rows(sa.select(schema.floors))
        work = _work_by_tenant(transaction)
        return cls(
            transaction,
            _open_accounts(transaction, tenant_ids, work),
            {(row.band, row.model): row.vtime for row in floors},
            sum(work.values()),
        )

    def refusal(self, tenant_id: str, num_jobs: int, cost_seconds: float) -> DiffuserveError | None:
        """Why so many more jobs of the tenant, of so many device-seconds in all, are not taken in."""
        plan = self.accounts[tenant_id].tenant.plan
        if num_jobs > plan.max_queued or cost_seconds > (plan.max_queued_seconds or math.inf):
            return TooLarge(
                f"{num_jobs:,} jobs of {cost_seconds:,.0f} device-seconds in all are more than the plan "
                f"{plan.name!r} lets anybody queue: {_limits_of(plan)}"
            )
        full = _over_plan(self.accounts[tenant_id], num_jobs, cost_seconds)
        if full is not None:
            return QueueFull(
                f"tenant {tenant_id!r} has {full}; wait until some have started",
                retry_after=max(_RETRY_AFTER_SECONDS, cost_seconds / num_jobs),
            )
        if self.backlog_seconds + cost_seconds > self.transaction.config.max_backlog_seconds:
            return BacklogFull(
                f"{self.backlog_seconds:,.0f} s of work wait already; try again later",
                retry_after=max(_RETRY_AFTER_SECONDS, min(self.backlog_seconds / 100, 300.0)),
            )
        return None

    def accept(self, one: Submission) -> None:
        new, now, account = one.new, self.transaction.now, self.accounts[one.new.tenant_id]
        if account.num_queued == 0:  # it was idle, which earns no credit
            account.vtime = max(account.vtime, self.floors.get((new.band, new.model), 0.0))
        account.next_seq += 1
        account.num_queued += 1
        account.queued_seconds += new.cost_seconds
        self.backlog_seconds += new.cost_seconds
        deadline = None if new.expires_in is None else now + new.expires_in
        self.rows.append(_job_row(one, account.next_seq, now, deadline))
        self.records.append(_record(one, account.next_seq, now, deadline))
        self.jobs[one.job_id] = _job(one, now, deadline)
        if (stamp := stamp_of(new)) is not None:
            self.keys.append(idempotency.row(stamp, one.job_id, now))
        if (entry := audit.flagged_prompt(one.job_id, new)) is not None:
            self.flagged.append(entry)

    def save(self) -> None:
        if not self.rows:
            return
        transaction = self.transaction
        transaction.execute(sa.insert(schema.jobs), self.rows)
        events = [event_row(record, "queued", {}, transaction.now) for record in self.records]
        transaction.execute(sa.insert(schema.job_events), events)
        idempotency.keep(transaction, self.keys)
        audit.keep(transaction, self.flagged)
        transaction.execute(_SAVE_ACCOUNT, [_account_row(account) for account in self.accounts.values()])
        queue.put(transaction, self.records)


_SAVE_ACCOUNT = (
    sa.update(tenants)
    .where(tenants.c.id == sa.bindparam("tenant"))
    .values({name: sa.bindparam(f"new_{name}") for name in ("next_seq", "num_queued", "vtime")})
)


def _over_plan(account: Account, num_jobs: int, cost_seconds: float) -> str | None:
    """What there is too much of already."""
    plan = account.tenant.plan
    if account.num_queued + num_jobs > plan.max_queued:
        return f"{account.num_queued:,} jobs queued, and its plan {plan.name!r} allows {plan.max_queued:,}"
    longest = plan.max_queued_seconds
    if longest is not None and account.queued_seconds + cost_seconds > longest:
        return (
            f"{account.queued_seconds:,.0f} device-seconds of work queued, and with {cost_seconds:,.0f} more "
            f"it would be past the {longest:,.0f} that its plan {plan.name!r} allows"
        )
    return None


def _limits_of(plan: Plan) -> str:
    seconds = plan.max_queued_seconds
    return f"{plan.max_queued:,} jobs" + ("" if seconds is None else f", {seconds:,.0f} device-seconds")


def _work_by_tenant(transaction: Transaction) -> dict[str, float]:
    """device-seconds that wait."""
    lanes = schema.lanes
    work = sa.select(lanes.c.tenant_id, sa.func.sum(lanes.c.work_seconds)).group_by(lanes.c.tenant_id)
    return {tenant_id: float(seconds) for tenant_id, seconds in map(tuple, transaction.rows(work))}


def stamp_of(new: NewJob | NewBatch) -> Stamp | None:
    if not new.idempotency_key:
        return None
    return Stamp(new.tenant_id, new.idempotency_key, new.fingerprint)


def _account_row(account: Account) -> dict[str, Any]:
    return {
        "tenant": account.tenant.id,
        "new_next_seq": account.next_seq,
        "new_num_queued": account.num_queued,
        "new_vtime": account.vtime,
    }


def _open_accounts(
    transaction: Transaction, tenant_ids: set[str], work: Mapping[str, float]
) -> dict[str, Account]:
    wanted = sorted(tenant_ids)
    statement = sa.select(tenants).where(tenants.c.id.in_(wanted))
    rows = transaction.rows(statement)
    missing = tenant_ids - {row.id for row in rows}
    if missing:
        transaction.execute(sa.insert(tenants), [{"id": one} for one in sorted(missing)])
        rows = transaction.rows(statement)
    return {
        row.id: Account(
            queue.tenant_of(row, transaction.config),
            row.next_seq,
            row.num_queued,
            work.get(row.id, 0.0),
            row.vtime,
        )
        for row in rows
    }


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
        "webhook": None if new.webhook is None else dump_webhook(new.webhook),
        "batch_id": new.batch_id,
        "custom_id": new.custom_id,
        "prompt": None if new.prompt is None else dump(new.prompt.to_dict()),
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
        webhook=None,  # nothing ends at its submission
        batch_id=new.batch_id,
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
        batch_id=new.batch_id,
        custom_id=new.custom_id,
        prompt=new.prompt,
        timeout=new.timeout,
        deadline=deadline,
    )
