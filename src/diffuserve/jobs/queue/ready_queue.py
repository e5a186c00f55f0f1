"""The ready queue: adding and removing jobs, and the lanes' sums that change with them."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.jobs.job import Band
from diffuserve.domain.tenant import Plan, PlanOverrides, Tenant
from diffuserve.events.base import QUEUE
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.connections import IDS, Transaction, upsert
from diffuserve.jobs.database.lane_change import LaneChange, Moved
from diffuserve.jobs.policy.lanes import urgent_place
from diffuserve.jobs.queue import handicaps
from diffuserve.jobs.records import JobRecord

ready, delayed, lanes, tenants = schema.ready, schema.delayed, schema.lanes, schema.tenants

_TENANTS = sa.select(tenants).where(tenants.c.id.in_(IDS))
_INSERT_READY = sa.insert(ready)
_TAKE = (
    sa.delete(ready).where(ready.c.job_id.in_(IDS)).returning(ready.c.lane, ready.c.seq, ready.c.cost_seconds)
)
_CHARGE = (
    sa.update(tenants)
    .where(tenants.c.id == sa.bindparam("tenant"))
    .values(
        vtime=tenants.c.vtime + sa.bindparam("vtime_change"),
        num_queued=tenants.c.num_queued + sa.bindparam("queued_change"),
    )
)


def _of_head(column: sa.Column[Any]) -> sa.ScalarSelect[Any]:
    in_lane = sa.select(column).where(ready.c.lane == lanes.c.lane)
    return in_lane.order_by(ready.c.seq).limit(1).scalar_subquery()


_HEAD_SEQ = sa.select(sa.func.min(ready.c.seq)).where(ready.c.lane == lanes.c.lane).scalar_subquery()
_SHRINK = (
    sa.update(lanes)
    .where(lanes.c.lane == sa.bindparam("key"))
    .values(
        num_ready=lanes.c.num_ready - sa.bindparam("jobs_taken"),
        # Sums of floats drift: an empty lane is set to exactly no work.
        work_seconds=sa.case(
            (
                lanes.c.num_ready > sa.bindparam("jobs_taken"),
                lanes.c.work_seconds - sa.bindparam("work_taken"),
            ),
            else_=0.0,
        ),
        head_since=sa.case((lanes.c.head_seq == _HEAD_SEQ, lanes.c.head_since), else_=sa.bindparam("now")),
        head_seq=sa.func.coalesce(_HEAD_SEQ, 0),
        head_at=sa.func.coalesce(_of_head(ready.c.enqueued_at), 0.0),
        head_adapters=sa.func.coalesce(_of_head(ready.c.adapters), ""),
        head_hint=sa.func.coalesce(_of_head(ready.c.hint), ""),
    )
)


@dataclass
class _AccountChange:
    """Amounts to be added to a tenant's virtual time and to its number of queued jobs."""

    vtime: float = 0.0
    num_queued: int = 0


@dataclass
class Ledger:
    """Changes of tenants' accounts in one transaction, written with one statement."""

    changes: dict[str, _AccountChange] = field(default_factory=lambda: defaultdict(_AccountChange))

    def charge(self, tenant: Tenant, seconds: float) -> None:
        """Advance the tenant's virtual time by device-seconds over its weight; a negative value refunds."""
        self.changes[tenant.id].vtime += seconds / tenant.plan.weight

    def count_queued(self, tenant_id: str, num_jobs: int) -> None:
        """Add to the tenant's number of queued jobs, which counts delayed ones as well."""
        self.changes[tenant_id].num_queued += num_jobs

    def save(self, transaction: Transaction) -> None:
        """Write all changes."""
        rows = [
            {"tenant": tenant_id, "vtime_change": change.vtime, "queued_change": change.num_queued}
            for tenant_id, change in self.changes.items()
        ]
        if rows:
            transaction.execute(_CHARGE, rows)


def tenant_of(row: sa.Row[Any], config: StoreConfig) -> Tenant:
    """Return the tenant in a row of `tenants`."""
    return Tenant(row.id, plan_of(config, row.plan, row.weight, row.max_running, row.max_queued))


def plan_of(
    config: StoreConfig,
    name: str | None,
    weight: float | None,
    max_running: int | None,
    max_queued: int | None,
) -> Plan:
    """Return a plan as the settings define it now, with a tenant's own limits applied."""
    overrides = PlanOverrides(weight=weight, max_running=max_running, max_queued=max_queued)
    return overrides.apply(config.plan(name or config.default_plan))


def load_tenants(transaction: Transaction, tenant_ids: Collection[str]) -> dict[str, Tenant]:
    """Return those of the tenants that are known, by id."""
    rows = tenant_rows(transaction, tenant_ids)
    return {row.id: tenant_of(row, transaction.config) for row in rows}


def tenant_rows(transaction: Transaction, tenant_ids: Collection[str]) -> list[sa.Row[Any]]:
    """Return the rows of those of the tenants that are known."""
    return transaction.rows(_TENANTS, {"ids": sorted(tenant_ids)})


def put(transaction: Transaction, records: Sequence[JobRecord]) -> None:
    """Make jobs ready, each at the place of its `seq` or of its deadline.

    The caller counts them in their tenants' accounts.
    """
    if not records:
        return
    placed = [_placed(record, transaction) for record in records]
    transaction.execute(_INSERT_READY, [_ready_row(record, rises_at) for record, rises_at in placed])
    _grow_lanes(transaction, [record for record, _ in placed])
    is_urgent = any(record.band is Band.INTERACTIVE for record in records)
    transaction.publish(QUEUE, {"type": "ready", "urgent": is_urgent})


def take(transaction: Transaction, job_ids: Collection[str], moved: Moved = Moved.OUT) -> None:
    """Remove jobs, ready or delayed; the caller counts them in their tenants' accounts."""
    if not job_ids:
        return
    wanted = list(job_ids)
    taken = transaction.rows(_TAKE, {"ids": wanted})
    if len(taken) < len(wanted):
        transaction.execute(sa.delete(delayed).where(delayed.c.job_id.in_(wanted)))
    _shrink_lanes(transaction, taken, moved)


def leave(transaction: Transaction, records: Collection[JobRecord]) -> None:
    """Remove queued jobs that will not run, and uncount them."""
    take(transaction, [record.id for record in records])
    ledger = Ledger()
    for record in records:
        ledger.count_queued(record.tenant_id, -1)
    ledger.save(transaction)


def delay(transaction: Transaction, due_times: Iterable[tuple[str, float]]) -> None:
    """Keep jobs that become ready later, each with the time at which it is due."""
    rows = [{"job_id": job_id, "due_at": due_at} for job_id, due_at in due_times]
    if rows:
        transaction.execute(sa.insert(delayed), rows)


def drop_empty_lanes(transaction: Transaction) -> None:
    """Delete lanes without ready jobs; not at every change, since a lane that ran empty often fills again."""
    transaction.execute(sa.delete(lanes).where(lanes.c.num_ready <= 0))


def _placed(record: JobRecord, transaction: Transaction) -> tuple[JobRecord, float | None]:
    """Return the job with its place among the ready ones, and the time at which its place changes.

    A job that is close to its deadline goes before all others of its lane, the closest first. It gains
    nothing over other tenants, since lanes are chosen by their tenants' virtual time.
    """
    latest = record.latest_start
    if latest is None:
        return record, None
    rises_at = latest - transaction.config.deadline_lead_seconds
    if rises_at > transaction.now:
        return record, rises_at
    return replace(record, seq=urgent_place(record.seq, latest)), None


def _ready_row(record: JobRecord, rises_at: float | None) -> dict[str, Any]:
    return {
        "job_id": record.id,
        "lane": record.lane,
        "seq": record.seq,
        "cost_seconds": record.work_seconds,
        "step_tokens": record.step_tokens,
        "enqueued_at": record.created_at,
        "deadline": record.start_by,
        "rises_at": rises_at,
        "adapters": record.adapters,
        "hint": record.hint,
    }


def _grow_lanes(transaction: Transaction, records: Sequence[JobRecord]) -> None:
    """Add jobs to their lanes; a requeued one may come before the lane's head and replace it."""
    by_lane = _by_lane(records)
    rows = [_lane_row(lane, members, transaction.now) for lane, members in by_lane.items()]
    handicaps.give(transaction, rows)
    transaction.execute(_grow(transaction.dialect), rows)
    transaction.lane_changes += [put_change(lane, members) for lane, members in by_lane.items()]


@cache
def _grow(dialect: str) -> sa.Executable:
    insert = upsert(lanes, dialect)
    new = insert.excluded
    is_head = sa.or_(lanes.c.num_ready <= 0, new.head_seq < lanes.c.head_seq)
    return insert.on_conflict_do_update(
        index_elements=[lanes.c.lane],
        set_={
            "num_ready": lanes.c.num_ready + new.num_ready,
            "work_seconds": lanes.c.work_seconds + new.work_seconds,
            "head_seq": sa.case((is_head, new.head_seq), else_=lanes.c.head_seq),
            "head_at": sa.case((is_head, new.head_at), else_=lanes.c.head_at),
            "head_since": sa.case((is_head, new.head_since), else_=lanes.c.head_since),
            "head_adapters": sa.case((is_head, new.head_adapters), else_=lanes.c.head_adapters),
            "head_hint": sa.case((is_head, new.head_hint), else_=lanes.c.head_hint),
        },
    )


def _by_lane(records: Sequence[JobRecord]) -> dict[str, list[JobRecord]]:
    by_lane: dict[str, list[JobRecord]] = defaultdict(list)
    for record in records:
        by_lane[record.lane].append(record)
    return by_lane


def put_change(lane: str, records: Sequence[JobRecord]) -> LaneChange:
    """Return the change of a lane that jobs make which come into it."""
    first = records[0]
    return LaneChange(
        lane,
        Moved.IN,
        [(record.seq, record.work_seconds) for record in records],
        band=first.band,
        tenant_id=first.tenant_id,
        model=first.model,
        is_decode=first.is_denoised,
    )


def _lane_row(lane: str, records: Sequence[JobRecord], now: float) -> dict[str, Any]:
    """Return the row of a lane as if it had only these jobs."""
    head = min(records, key=lambda record: record.seq)
    return {
        "lane": lane,
        "band": head.band,
        "tenant_id": head.tenant_id,
        "model": head.model,
        "is_decode": head.is_denoised,
        "is_exact": head.exact and not head.is_denoised,
        "num_ready": len(records),
        "work_seconds": sum(record.work_seconds for record in records),
        "head_seq": head.seq,
        "head_at": head.created_at,
        "head_since": now,
        "head_adapters": head.adapters,
        "head_hint": head.hint,
    }


def _shrink_lanes(transaction: Transaction, taken: Sequence[sa.Row[Any]], moved: Moved) -> None:
    """Subtract the jobs that were taken from their lanes, and find the lanes' new heads."""
    jobs: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in taken:
        jobs[row.lane].append((row.seq, row.cost_seconds))
    changes = [LaneChange(lane, moved, members) for lane, members in jobs.items()]
    transaction.lane_changes += changes
    rows = [
        {
            "key": change.lane,
            "jobs_taken": len(change.jobs),
            "work_taken": -change.seconds_added,
            "now": transaction.now,
        }
        for change in changes
    ]
    if rows:
        transaction.execute(_SHRINK, rows)
