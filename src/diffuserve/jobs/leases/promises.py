"""Promised room: jobs of a worker were preempted, and no claim has used the room yet."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from diffuserve.jobs.database import schema
from diffuserve.jobs.database.connections import Transaction

workers = schema.workers


def num_promised(row: sa.Row[Any], transaction: Transaction) -> int:
    """Return how many jobs' room a worker promises: 0 after a lease's time, when it is lost or too small."""
    since = transaction.now - transaction.config.lease_seconds
    return int(row.num_promised) if row.promised_at is not None and row.promised_at > since else 0


def promise(transaction: Transaction, promised: Mapping[str, int], told: Iterable[str]) -> None:
    """Count one more job's room for each worker with a preempted job; `promised` are the earlier counts."""
    for worker_id, num_told in Counter(told).items():
        _save(transaction, worker_id, promised[worker_id] + num_told, promised_at=transaction.now)


def use(transaction: Transaction, promised: Mapping[str, int], granted: Iterable[str]) -> None:
    """Subtract one for each job that was granted to a worker with promised room."""
    for worker_id, num_granted in Counter(granted).items():
        if promised[worker_id]:
            _save(transaction, worker_id, max(promised[worker_id] - num_granted, 0))


def _save(transaction: Transaction, worker_id: str, num: int, **values: float) -> None:
    row = sa.update(workers).where(workers.c.id == worker_id)
    transaction.execute(row.values(num_promised=num, **values))
