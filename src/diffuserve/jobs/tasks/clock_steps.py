"""Steps of the database's clock: times written before it was set back lie too far in the future.

Uncorrected, they would be due only once the clock has caught up: until then a dead worker would keep its
jobs, and no retry would start. A step forward needs no correction, since it looks like an outage.
"""

import logging

import sqlalchemy as sa

from diffuserve.jobs.database import schema
from diffuserve.jobs.database.connections import Transaction

log = logging.getLogger(__name__)

jobs, leases, delayed = schema.jobs, schema.leases, schema.delayed
workers, deliveries, housekeeping = schema.workers, schema.webhook_deliveries, schema.housekeeping


def follow_back(transaction: Transaction, seconds: float) -> None:
    """Move times earlier that were written before the clock was set back by `seconds`.

    As after an outage, every worker has a whole lease to send its heartbeat, and every job a whole timeout.
    Deadlines of waiting jobs are not moved: these jobs may wait that much longer.
    """
    log.warning("the database's clock went back by %.1f s; leases and retries are set to follow it", seconds)
    now, config = transaction.now, transaction.config
    timeout = sa.select(jobs.c.timeout).where(jobs.c.id == leases.c.job_id).scalar_subquery()
    _at_most(transaction, leases.c.granted_at, now)
    _at_most(transaction, leases.c.expires_at, now + config.lease_seconds)
    _at_most(transaction, leases.c.stop_at, now + timeout)
    _at_most(transaction, delayed.c.due_at, now + config.retry_cap_seconds)
    _at_most(transaction, workers.c.heartbeat_at, now)
    _at_most(transaction, housekeeping.c.last_alive, now)
    written_at = sa.func.coalesce(deliveries.c.last_attempt_at, deliveries.c.created_at)
    ahead = sa.update(deliveries).where(deliveries.c.next_at.is_not(None), written_at > now)
    transaction.execute(ahead.values(next_at=deliveries.c.next_at - seconds))


def _at_most(
    transaction: Transaction, column: sa.Column[float], latest: sa.ColumnElement[float] | float
) -> None:
    """Set `column` to `latest` in every row where it is later."""
    transaction.execute(sa.update(column.table).where(column > latest).values({column: latest}))
