"""Leases that are over: workers that do not renew them are lost, unless an outage kept them from it.

An outage is a time in which no reaper ran, for whatever reason: the database or all control planes were away,
frozen, or so slow that nothing was written.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from diffuserve.jobs.database import schema
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.leases import revoked_leases
from diffuserve.jobs.queue.due import MAX_SWEPT
from diffuserve.telemetry.log_fields import once_a_minute

log = logging.getLogger(__name__)

leases, workers, housekeeping = schema.leases, schema.workers, schema.housekeeping

OUTAGE_SECONDS = 5.0
"""Silence of the reaper that counts as an outage, where leases are long; a round may take as long."""
_NAME = "outage"


def spare(transaction: Transaction, silent_seconds: float) -> None:
    """Give each worker a whole lease from now to be heard, if the reaper's silence was an outage.

    One that was not heard since the outage before has had that: it gets back only the time of this one, or
    a control plane that dies again and again would keep the jobs of dead workers. Jobs get back the time too,
    since what they have finished may wait to be reported.
    """
    lease_seconds = transaction.config.lease_seconds
    lost_seconds = silent_seconds - min(OUTAGE_SECONDS, lease_seconds / 3)
    if lost_seconds <= 0:
        return
    whole = transaction.now + lease_seconds
    heard = sa.select(workers.c.id).where(workers.c.heartbeat_at > _last_outage(transaction))
    is_heard = leases.c.worker_id.in_(heard)
    later = {name: leases.c[name] + lost_seconds for name in ("expires_at", "stop_at")}
    transaction.execute(sa.update(leases).values(stop_at=later["stop_at"]))
    transaction.execute(sa.update(leases).where(~is_heard).values(expires_at=later["expires_at"]))
    transaction.execute(
        sa.update(leases).where(is_heard, leases.c.expires_at < whole).values(expires_at=whole)
    )
    _note(transaction)
    message = "no reaper ran for %.0f s: no lease ends within the next %.0f s for that"
    log.warning(message, silent_seconds, lease_seconds, extra=once_a_minute())


def end(transaction: Transaction, last_alive: float) -> None:
    """End leases that were not renewed in time; `last_alive` is the time of the round before."""
    expired = transaction.rows(
        sa.select(leases).where(leases.c.expires_at <= transaction.now).limit(MAX_SWEPT)
    )
    _tell(transaction, last_alive, expired)
    if expired:
        revoked_leases.lose(transaction, expired)


def end_late(transaction: Transaction) -> None:
    """End the leases of jobs that have run for longer than their timeout."""
    late = transaction.rows(sa.select(leases).where(leases.c.stop_at <= transaction.now).limit(MAX_SWEPT))
    if late:
        revoked_leases.stop_late(transaction, late)


def _tell(transaction: Transaction, last_alive: float, expired: Sequence[sa.Row[Any]]) -> None:
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
    if _last_outage(transaction) + lease_seconds > transaction.now:
        return sa.false()
    return workers.c.heartbeat_at > last_alive - lease_seconds


def _last_outage(transaction: Transaction) -> float:
    """Return when the last outage ended; 0 if there was none."""
    ended = transaction.rows(sa.select(housekeeping.c.last_alive).where(housekeeping.c.name == _NAME))
    return float(ended[0].last_alive) if ended else 0.0


def _note(transaction: Transaction) -> None:
    ended = {"last_alive": transaction.now}
    insert = transaction.upsert(housekeeping).values(name=_NAME, holder="", **ended)
    transaction.execute(insert.on_conflict_do_update(index_elements=["name"], set_=ended))
