"""Workers as a transaction that grants leases sees them."""

from collections.abc import Collection
from dataclasses import dataclass

import orjson
import sqlalchemy as sa

from diffuserve.domain.workers.exactness import is_exact
from diffuserve.domain.workers.worker import WorkerRole
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.connections import IDS, Transaction
from diffuserve.jobs.leases import promises
from diffuserve.jobs.workers.reports import report_of

workers = schema.workers

_CLAIMERS = sa.select(workers).where(sa.or_(workers.c.id.in_(IDS), workers.c.role == WorkerRole.DECODE))


@dataclass(frozen=True)
class Claimer:
    """A worker that claims: its models (none if it drains), role, price per hour, and machine.

    It `has_decoders` if there are workers that only decode, so that their queues must be read. `num_promised`
    of its jobs were told to make room that no claim has used yet. A worker that `is_exact` has reported that
    its weights are not quantized.
    """

    models: frozenset[str]
    role: WorkerRole
    price: float | None
    has_decoders: bool
    is_spot: bool
    num_promised: int
    is_exact: bool


def find_claimers(transaction: Transaction, worker_ids: Collection[str]) -> dict[str, Claimer]:
    """Return the known workers among these; the same statement looks for workers that only decode."""
    rows = transaction.rows(_CLAIMERS, {"ids": sorted(worker_ids)})
    has_decoders = any(row.role == WorkerRole.DECODE for row in rows)
    return {
        row.id: Claimer(
            frozenset(() if row.is_draining else orjson.loads(row.models)),
            WorkerRole(row.role),
            row.price_per_hour,
            has_decoders,
            row.is_spot,
            promises.num_promised(row, transaction),
            is_exact(report_of(row.report)),
        )
        for row in rows
        if row.id in worker_ids
    }


def live_claimers(transaction: Transaction) -> dict[str, Claimer]:
    """Return the workers that are alive and do not drain."""
    since = transaction.now - transaction.config.lease_seconds
    live = sa.select(workers.c.id).where(workers.c.heartbeat_at >= since, workers.c.is_draining.is_(False))
    return find_claimers(transaction, {row.id for row in transaction.rows(live)})
