"""The ready queue: putting jobs in, taking them out, and the lanes' sums that go with it."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.tenant import Plan, PlanOverrides, Tenant
from diffuserve.events.base import QUEUE
from diffuserve.jobs import schema
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.database import Transaction
from diffuserve.jobs.records import JobRecord

ready, delayed, lanes, tenants = schema.ready, schema.delayed, schema.lanes, schema.tenants

_CHARGE = (
    sa.update(tenants)
    .where(tenants.c.id == sa.bindparam("tenant"))
    .values(
        vtime=tenants.c.vtime + sa.bindparam("vtime_change"),
        num_queued=tenants.c.num_queued + sa.bindparam("queued_change"),
    )
)
_HEAD = (
    sa.select(ready.c.enqueued_at)
    .where(ready.c.lane == lanes.c.lane)
    .order_by(ready.c.seq)
    .limit(1)
    .scalar_subquery()
)
_HEAD_SEQ = sa.select(sa.func.min(ready.c.seq)).where(ready.c.lane == lanes.c.lane).scalar_subquery()
_SHRINK = (
    sa.update(lanes)
    .where(lanes.c.lane == sa.bindparam("key"))
    .values(
        num_ready=lanes.c.num_ready - sa.bindparam("jobs_taken"),
        # Sums of floats drift; an empty lane has no work.
        work_seconds=sa.case(
            (
                lanes.c.num_ready > sa.bindparam("jobs_taken"),
                lanes.c.work_seconds - sa.bindparam("work_taken"),
            ),
            else_=0.0,
        ),
        head_since=sa.case((lanes.c.head_seq == _HEAD_SEQ, lanes.c.head_since), else_=sa.bindparam("moment")),
        head_seq=sa.func.coalesce(_HEAD_SEQ, 0),
        head_at=sa.func.coalesce(_HEAD, 0.0),
    )
)


@dataclass
class Ledger:
    """Changes of tenants' accounts, written in one statement."""

    changes: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0]))

    def charge(self, tenant: Tenant, seconds: float) -> None:
        """Virtual time: device-seconds over the tenant's weight; negative gives back."""
        self.changes[tenant.id][0] += seconds / tenant.plan.weight

    def count_queued(self, tenant_id: str, jobs: int) -> None:
        self.changes[tenant_id][1] += jobs

    def save(self, transaction: Transaction) -> None:
        if self.changes:
            transaction.execute(
                _CHARGE,
                [
                    {"tenant": tenant_id, "vtime_change": vtime, "queued_change": int(queued)}
                    for tenant_id, (vtime, queued) in self.changes.items()
                ],
            )


def tenant_of(row: sa.Row[Any], config: StoreConfig) -> Tenant:
    """From a row of `tenants`."""
    return Tenant(row.id, plan_of(config, row.plan, row.weight, row.max_running, row.max_queued))


def plan_of(
    config: StoreConfig,
    name: str | None,
    weight: float | None,
    max_running: int | None,
    max_queued: int | None,
) -> Plan:
    """A plan, as the settings have it now, with a tenant's own limits."""
    overrides = PlanOverrides(weight=weight, max_running=max_running, max_queued=max_queued)
    return overrides.apply(config.plan(name or config.default_plan))


def load_tenants(transaction: Transaction, tenant_ids: Collection[str]) -> dict[str, Tenant]:
    rows = transaction.rows(sa.select(tenants).where(tenants.c.id.in_(list(tenant_ids))))
    return {row.id: tenant_of(row, transaction.config) for row in rows}


def put(transaction: Transaction, records: Sequence[JobRecord]) -> None:
    """Make jobs ready, each at the place that its `seq` gives it; counting them is the caller's."""
    if not records:
        return
    transaction.execute(sa.insert(ready), [_ready_row(record) for record in records])
    _grow_lanes(transaction, records)
    transaction.notices.append((QUEUE, {"type": "ready"}))


def take(transaction: Transaction, job_ids: Collection[str]) -> None:
    """Take jobs out, ready or delayed ones; counting them is the caller's."""
    if not job_ids:
        return
    wanted = list(job_ids)
    statement = sa.delete(ready).where(ready.c.job_id.in_(wanted))
    taken = transaction.rows(statement.returning(ready.c.lane, ready.c.cost_seconds))
    if len(taken) < len(wanted):
        transaction.execute(sa.delete(delayed).where(delayed.c.job_id.in_(wanted)))
    _shrink_lanes(transaction, taken)


def delay(transaction: Transaction, due_times: Iterable[tuple[str, float]]) -> None:
    """Jobs that become ready later."""
    rows = [{"job_id": job_id, "due_at": due_at} for job_id, due_at in due_times]
    if rows:
        transaction.execute(sa.insert(delayed), rows)


def _ready_row(record: JobRecord) -> dict[str, Any]:
    return {
        "job_id": record.id,
        "lane": record.lane,
        "seq": record.seq,
        "cost_seconds": record.cost_seconds,
        "step_tokens": record.step_tokens,
        "enqueued_at": record.created_at,
        # A deadline is for the wait: a job that has started once does not expire any more.
        "deadline": record.deadline if record.started_at is None else None,
    }


def _grow_lanes(transaction: Transaction, records: Sequence[JobRecord]) -> None:
    insert = transaction.upsert(lanes)
    new = insert.excluded
    is_head = sa.or_(lanes.c.num_ready <= 0, new.head_seq < lanes.c.head_seq)
    statement = insert.on_conflict_do_update(
        index_elements=[lanes.c.lane],
        set_={
            "num_ready": lanes.c.num_ready + new.num_ready,
            "work_seconds": lanes.c.work_seconds + new.work_seconds,
            "head_seq": sa.case((is_head, new.head_seq), else_=lanes.c.head_seq),
            "head_at": sa.case((is_head, new.head_at), else_=lanes.c.head_at),
            "head_since": sa.case((is_head, new.head_since), else_=lanes.c.head_since),
        },
    )
    transaction.execute(statement, _lane_rows(records, transaction.now))


def _lane_rows(records: Sequence[JobRecord], now: float) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for record in sorted(records, key=lambda one: one.seq):
        row = rows.setdefault(
            record.lane,
            {
                "lane": record.lane,
                "band": record.band,
                "tenant_id": record.tenant_id,
                "model": record.model,
                "num_ready": 0,
                "work_seconds": 0.0,
                "head_seq": record.seq,
                "head_at": record.created_at,
                "head_since": now,
            },
        )
        row["num_ready"] += 1
        row["work_seconds"] += record.cost_seconds
    return list(rows.values())


def _shrink_lanes(transaction: Transaction, taken: Sequence[sa.Row[Any]]) -> None:
    counts: dict[str, int] = defaultdict(int)
    work: dict[str, float] = defaultdict(float)
    for row in taken:
        counts[row.lane] += 1
        work[row.lane] += row.cost_seconds
    if not counts:
        return
    rows = [
        {"key": lane, "jobs_taken": count, "work_taken": work[lane], "moment": transaction.now}
        for lane, count in counts.items()
    ]
    transaction.execute(_SHRINK, rows)


def drop_empty_lanes(transaction: Transaction) -> None:
    """Not at every change: a lane that runs empty often fills again."""
    transaction.execute(sa.delete(lanes).where(lanes.c.num_ready <= 0))
