"""Lines of the log about workers that are lost, with their jobs."""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from diffuserve.jobs.database import schema
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.tasks.spared_leases import last_outage

log = logging.getLogger(__name__)

workers = schema.workers


def tell(transaction: Transaction, last_alive: float, expired: Sequence[sa.Row[Any]]) -> None:
    """Log which workers are lost since the round of the reaper before, and which ones the leases had."""
    num_jobs = Counter(lease.worker_id for lease in expired)
    silent_since = transaction.now - transaction.config.lease_seconds
    is_silent = sa.and_(workers.c.heartbeat_at <= silent_since, _was_heard(transaction, last_alive))
    wanted = sa.select(workers.c.id, workers.c.name, workers.c.heartbeat_at)
    for worker in transaction.rows(wanted.where(sa.or_(workers.c.id.in_(list(num_jobs)), is_silent))):
        name, num = worker.name or worker.id, num_jobs[worker.id]
        if worker.heartbeat_at <= silent_since:
            seconds = transaction.now - worker.heartbeat_at
            message = "worker %s is lost: no heartbeat for %.0f s, %d jobs queued again"
            log.warning(message, name, seconds, num)
        else:
            log.warning("worker %s does not renew its leases: %d jobs queued again", name, num)


def _was_heard(transaction: Transaction, last_alive: float) -> sa.ColumnElement[bool]:
    """Return whether a worker was not lost at the round before; false while an outage may be the cause."""
    lease_seconds = transaction.config.lease_seconds
    if last_outage(transaction) + lease_seconds > transaction.now:
        return sa.false()
    return workers.c.heartbeat_at > last_alive - lease_seconds
