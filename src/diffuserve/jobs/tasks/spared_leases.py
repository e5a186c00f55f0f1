"""Leases after an outage: no worker could renew them, so none of them tells that its worker is dead.

An outage is a time in which no reaper ran, for whatever reason: the database or all control planes were away,
frozen, or so slow that nothing was written.
"""

import logging

import sqlalchemy as sa

from diffuserve.jobs.database import schema
from diffuserve.jobs.database.connections import Transaction
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
    heard = sa.select(workers.c.id).where(workers.c.heartbeat_at > last_outage(transaction))
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


def last_outage(transaction: Transaction) -> float:
    """Return when the last outage ended; 0 if there was none."""
    ended = transaction.rows(sa.select(housekeeping.c.last_alive).where(housekeeping.c.name == _NAME))
    return float(ended[0].last_alive) if ended else 0.0


def _note(transaction: Transaction) -> None:
    ended = {"last_alive": transaction.now}
    insert = transaction.upsert(housekeeping).values(name=_NAME, holder="", **ended)
    transaction.execute(insert.on_conflict_do_update(index_elements=["name"], set_=ended))
