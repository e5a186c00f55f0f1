"""Device usage by day: device-seconds of attempts, and times for which workers were registered.

Attempts are counted in the transaction that ends them, so that a repeated report does not count twice, and
workers' time in the transactions of their heartbeats. Both have the price that the worker registered with.
"""

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.workers.machines import MachineKind
from diffuserve.jobs.database import count_tables, schema
from diffuserve.jobs.database.connections import IDS, Transaction, upsert
from diffuserve.jobs.database.tally import AttemptCount, AttemptKey

usage, worker_time, workers = count_tables.usage, count_tables.worker_time, schema.workers

TIME_COLUMNS = (workers.c.heartbeat_at, workers.c.is_spot, workers.c.price_per_hour)
"""What `count_time` reads of a worker."""

MEMORY = timedelta(days=400)  # a month can be compared with the same of the year before
_HOUR = 3_600.0
_SUMS = ("num_attempts", "num_images", "seconds", "cost")
_MACHINES = sa.select(workers.c.id, workers.c.is_spot, workers.c.price_per_hour).where(workers.c.id.in_(IDS))


def day_of(at: float) -> date:
    """Return UTC's day of a time in seconds since the epoch."""
    return datetime.fromtimestamp(at, UTC).date()


def save(transaction: Transaction) -> None:
    """Write the attempts counted in the transaction."""
    attempts = transaction.tally.attempts
    if not attempts:
        return
    ids = sorted({attempt.worker_id for attempt in attempts})
    machines = {row.id: row for row in transaction.rows(_MACHINES, {"ids": ids})}
    rows = [
        _row_of(attempt, count, machines.get(attempt.worker_id), transaction.now)
        for attempt, count in attempts.items()
    ]
    transaction.execute(_add(usage, transaction.dialect), rows)


def count_time(transaction: Transaction, seen: Iterable[sa.Row[Any]]) -> None:
    """Count the time since the last heartbeat of workers that have just been heard of.

    A heartbeat that is applied again counts nothing, because the worker's row then has its time already.
    """
    seconds: dict[MachineKind, float] = defaultdict(float)
    cost: dict[MachineKind, float] = defaultdict(float)
    for worker in seen:
        kind, since = MachineKind.of(worker.is_spot), max(transaction.now - worker.heartbeat_at, 0.0)
        seconds[kind] += since
        cost[kind] += _cost(since, worker)
    day = day_of(transaction.now).isoformat()
    rows = [{"day": day, "kind": kind, "seconds": seconds[kind], "cost": cost[kind]} for kind in seconds]
    if rows:
        transaction.execute(_add(worker_time, transaction.dialect), rows)


def forget(transaction: Transaction) -> None:
    """Delete days that are older than 400 days."""
    first = (day_of(transaction.now) - MEMORY).isoformat()
    for table in (usage, worker_time):
        transaction.execute(sa.delete(table).where(table.c.day < first))


def _row_of(
    attempt: AttemptKey, count: AttemptCount, machine: sa.Row[Any] | None, now: float
) -> dict[str, Any]:
    """Return a row of `usage`. A worker that is no longer known counts as one without a price."""
    return {
        "day": day_of(now).isoformat(),
        "tenant_id": attempt.tenant_id,
        "model": attempt.model,
        "kind": MachineKind.of(machine is not None and machine.is_spot),
        "outcome": attempt.outcome,
        "num_attempts": count.num,
        "num_images": count.num_images,
        "seconds": count.seconds,
        "cost": _cost(count.seconds, machine),
    }


def _cost(seconds: float, machine: sa.Row[Any] | None) -> float:
    price = machine.price_per_hour if machine is not None else None
    return seconds * (price or 0.0) / _HOUR


@cache
def _add(table: sa.Table, dialect: str) -> sa.Executable:
    insert = upsert(table, dialect)
    added = {name: table.c[name] + insert.excluded[name] for name in _SUMS if name in table.c}
    return insert.on_conflict_do_update(index_elements=list(table.primary_key), set_=added)
