"""Admission: whether a tenant may queue more work, and the rows of the jobs that are admitted."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.errors import BacklogFull, DiffuserveError, QueueFull, TooLarge
from diffuserve.domain.jobs.job import NewJob
from diffuserve.domain.safety import AuditEntry
from diffuserve.domain.tenant import Plan, Tenant
from diffuserve.jobs.database import accepted_work, schema
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.files import links
from diffuserve.jobs.queue import batch_items, idempotency, ready_queue
from diffuserve.jobs.queue.changes import event_row, log
from diffuserve.jobs.queue.idempotency import stamp_of
from diffuserve.jobs.records import JobRecord, new_record
from diffuserve.jobs.security import audit

tenants = schema.tenants

_MIN_RETRY_SECONDS = 5.0
_MAX_RETRY_SECONDS = 300.0
_INSERT_JOB = sa.insert(schema.jobs)
_SAVED = ("next_seq", "num_queued")
_SAVE_ACCOUNT = (
    sa.update(tenants)
    .where(tenants.c.id == sa.bindparam("tenant"))
    .values({name: sa.bindparam(f"new_{name}") for name in _SAVED})
)


def _select_work() -> sa.Select[Any]:
    """Build the statement of `_work_by_tenant`: one for lanes and batches, since every submission runs it."""
    lanes, batches = schema.lanes, schema.batches
    ready = sa.select(
        lanes.c.tenant_id, lanes.c.work_seconds.label("seconds"), sa.literal(0).label("num_reserved")
    )
    reserved = sa.select(batches.c.tenant_id, batches.c.reserved_seconds, batches.c.reserved_jobs)
    parts = sa.union_all(ready, reserved.where(sa.text("reserved_jobs > 0"))).subquery()
    sums = (sa.func.sum(parts.c[name]).label(name) for name in ("seconds", "num_reserved"))
    return sa.select(parts.c.tenant_id, *sums).group_by(parts.c.tenant_id)


_WORK = _select_work()


@dataclass(frozen=True)
class _Work:
    """A tenant's work: predicted device-seconds, and the number of its jobs that are not stored yet."""

    seconds: float
    num_reserved: int


_IDLE = _Work(0.0, 0)


@dataclass
class Account:
    """A tenant's counters while one transaction admits jobs; owned by its `Admission`.

    `queued_seconds` are the predicted device-seconds of its queued jobs. They include the `num_reserved`
    jobs for which its batches have reserved room. `shared_plan` is the tenant's plan without its overrides.
    """

    tenant: Tenant
    shared_plan: Plan
    next_seq: int
    num_queued: int
    num_reserved: int
    queued_seconds: float

    @property
    def num_taken(self) -> int:
        """Number of places in the queue that are taken or reserved."""
        return self.num_queued + self.num_reserved

    @property
    def max_queued_shown(self) -> str:
        """The tenant's limit of queued jobs, and whose it is."""
        plan = self.tenant.plan
        if plan.max_queued == self.shared_plan.max_queued:
            return f"its plan {plan.name!r} allows {plan.max_queued:,}"
        return f"its own limit, set with its key by --max-queued, is {plan.max_queued:,}"


@dataclass
class Admission:
    """State of one transaction that admits jobs: the counters that it read, and its pending writes."""

    transaction: Transaction
    accounts: Mapping[str, Account]
    backlog_seconds: float
    records: list[JobRecord] = field(default_factory=list)
    key_rows: list[dict[str, Any]] = field(default_factory=list)
    link_rows: list[dict[str, Any]] = field(default_factory=list)
    audit_entries: list[AuditEntry] = field(default_factory=list)

    @classmethod
    def open(cls, transaction: Transaction, tenant_ids: Collection[str]) -> "Admission":
        """Read the counters of these tenants."""
        work = _work_by_tenant(transaction)
        return cls(
            transaction,
            _open_accounts(transaction, tenant_ids, work),
            sum(tenant_work.seconds for tenant_work in work.values()),
        )

    def refusal(self, tenant_id: str, num_jobs: int, cost_seconds: float) -> DiffuserveError | None:
        """Return the error that refuses `num_jobs` more jobs of the tenant; `None` if they are admitted.

        `cost_seconds` are the predicted device-seconds of all of them together.
        """
        account = self.accounts[tenant_id]
        return (
            _too_large(account, num_jobs, cost_seconds)
            or _queue_full(account, num_jobs, cost_seconds)
            or self._backlog_full(cost_seconds)
        )

    def admit(self, job_id: str, new: NewJob) -> None:
        """Give a job its place in its tenant's queue."""
        transaction, account = self.transaction, self.accounts[new.tenant_id]
        account.next_seq += 1
        account.num_queued += 1
        account.queued_seconds += new.cost_seconds
        self.backlog_seconds += new.cost_seconds
        self.records.append(new_record(new, job_id=job_id, seq=account.next_seq, now=transaction.now))
        self.link_rows += links.link_rows(job_id, new)
        if (stamp := stamp_of(new)) is not None:
            self.key_rows.append(idempotency.row(stamp, job_id, transaction.now))
        if (entry := audit.flagged_prompt(job_id, new)) is not None:
            self.audit_entries.append(entry)

    def save(self) -> None:
        """Write the admitted jobs and their related rows."""
        if not self.records:
            return
        transaction = self.transaction
        transaction.execute(_INSERT_JOB, [vars(record) for record in self.records])
        log(
            transaction,
            [event_row(record.id, record.num_events, "queued", transaction.now) for record in self.records],
        )
        idempotency.keep(transaction, self.key_rows)
        links.link(transaction, self.link_rows)
        audit.keep(transaction, self.audit_entries)
        transaction.execute(_SAVE_ACCOUNT, [_account_row(account) for account in self.accounts.values()])
        batch_items.move(transaction, [(record.batch_id, None, record.status) for record in self.records])
        ready_queue.put(transaction, self.records)
        accepted_work.count(transaction, self.records)

    def _backlog_full(self, cost_seconds: float) -> BacklogFull | None:
        if self.backlog_seconds + cost_seconds <= self.transaction.config.max_backlog_seconds:
            return None
        # Nobody knows how many workers there will be: a hundredth of the backlog is a guess, within bounds.
        pause = min(self.backlog_seconds / 100, _MAX_RETRY_SECONDS)
        return BacklogFull(
            f"{self.backlog_seconds:,.0f} device-seconds of work are queued already; try again later",
            retry_after=max(_MIN_RETRY_SECONDS, pause),
        )


def _too_large(account: Account, num_jobs: int, cost_seconds: float) -> TooLarge | None:
    """Refuse work that would not fit into the tenant's queue even if the queue were empty."""
    plan = account.tenant.plan
    if num_jobs > plan.max_queued:
        return TooLarge(
            f"{num_jobs:,} jobs would never fit in the queue of tenant {account.tenant.id!r}: "
            f"{account.max_queued_shown}"
        )
    limit = plan.max_queued_seconds
    if limit is None or cost_seconds <= limit:
        return None
    return TooLarge(
        f"{num_jobs:,} jobs of {cost_seconds:,.0f} device-seconds in all would never fit in the queue of "
        f"tenant {account.tenant.id!r}: its plan {plan.name!r} allows {limit:,.0f} device-seconds"
    )


def _queue_full(account: Account, num_jobs: int, cost_seconds: float) -> QueueFull | None:
    excess = _excess(account, num_jobs, cost_seconds)
    if excess is None:
        return None
    return QueueFull(
        f"tenant {account.tenant.id!r} has {excess}; wait until some have started",
        retry_after=max(_MIN_RETRY_SECONDS, cost_seconds / num_jobs),
    )


def _excess(account: Account, num_jobs: int, cost_seconds: float) -> str | None:
    """Describe the limit of the tenant's plan that `num_jobs` more jobs would exceed; `None` if none."""
    plan = account.tenant.plan
    if account.num_taken + num_jobs > plan.max_queued:
        return f"{account.num_taken:,} jobs queued, and {account.max_queued_shown}"
    limit = plan.max_queued_seconds
    if limit is not None and account.queued_seconds + cost_seconds > limit:
        return (
            f"{account.queued_seconds:,.0f} device-seconds of work queued, and with {cost_seconds:,.0f} more "
            f"it would exceed the {limit:,.0f} that its plan {plan.name!r} allows"
        )
    return None


def _work_by_tenant(transaction: Transaction) -> dict[str, _Work]:
    """Return the work of ready jobs, and of those for which batches have reserved room, by tenant."""
    return {
        row.tenant_id: _Work(float(row.seconds), int(row.num_reserved)) for row in transaction.rows(_WORK)
    }


def _account_row(account: Account) -> dict[str, Any]:
    return {"tenant": account.tenant.id} | {f"new_{name}": getattr(account, name) for name in _SAVED}


def _open_accounts(
    transaction: Transaction, tenant_ids: Collection[str], work: Mapping[str, _Work]
) -> dict[str, Account]:
    """Return the accounts of the tenants; a tenant that is new gets a row."""
    rows = ready_queue.tenant_rows(transaction, tenant_ids)
    missing = set(tenant_ids) - {row.id for row in rows}
    if missing:
        transaction.execute(sa.insert(tenants), [{"id": tenant_id} for tenant_id in sorted(missing)])
        rows = ready_queue.tenant_rows(transaction, tenant_ids)
    return {
        row.id: Account(
            tenant=ready_queue.tenant_of(row, transaction.config),
            shared_plan=transaction.config.plan(row.plan or transaction.config.default_plan),
            next_seq=row.next_seq,
            num_queued=row.num_queued,
            num_reserved=work.get(row.id, _IDLE).num_reserved,
            queued_seconds=work.get(row.id, _IDLE).seconds,
        )
        for row in rows
    }
