"""Workers on demand and on spot machines as a transaction that grants leases sees them."""

import orjson
import sqlalchemy as sa

from diffuserve.domain.worker import WorkerRole
from diffuserve.jobs import schema
from diffuserve.jobs.database import Transaction

workers = schema.workers


def phases_served(transaction: Transaction, is_spot: bool) -> frozenset[tuple[str, bool]]:
    """Return what live workers of a kind do: the names of their models, and whether they decode them."""
    since = transaction.now - transaction.config.lease_seconds
    live = sa.and_(workers.c.heartbeat_at >= since, workers.c.is_draining.is_(False))
    kinds = sa.select(workers.c.models, workers.c.role).where(live, workers.c.is_spot.is_(is_spot)).distinct()
    served = set()
    for row in transaction.rows(kinds):
        role = WorkerRole(row.role)
        does = {False: role.denoises, True: role.decodes}
        served |= {(model, phase) for model in orjson.loads(row.models) for phase in does if does[phase]}
    return frozenset(served)
