"""What time demands of the store: expired leases, retries that come due, jobs past their retention."""

import logging
from collections.abc import Collection, Sequence

import sqlalchemy as sa

from diffuserve.domain.errors import DiffuserveError
from diffuserve.domain.job import FINAL_STATUSES
from diffuserve.jobs import audit, finish, queue, schema
from diffuserve.jobs.batches import cancellation as batch_cancellation
from diffuserve.jobs.config import DAY
from diffuserve.jobs.database import Database, Transaction
from diffuserve.jobs.due import AT_ONCE, sweep_due
from diffuserve.jobs.webhooks import outbox
from diffuserve.jobs.workers import forget_workers
from diffuserve.jobs.writer import Writer

log = logging.getLogger(__name__)

_OUTAGE_SECONDS = 5.0  # silence of the reaper that counts as an outage
_WORKER_MEMORY_SECONDS = DAY
_DELIVERY_MEMORY_SECONDS = 7 * DAY

jobs, leases, housekeeping = schema.jobs, schema.leases, schema.housekeeping
_NAME = "reaper"


class Housekeeping:
    """The store as the reaper uses it. Every method raises `ServerUnavailable` while the database is
    unreachable."""

    def __init__(self, database: Database, writer: Writer) -> None:
        self._database = database
        self._writer = writer

    async def reap(self, holder: str) -> bool:
        """Do what is due if it is the turn of the reaper `holder`; return whether it was."""
        return await self._writer.run(reap, holder)

    async def find_outdated(self, limit: int) -> list[str]:
        """Return the ids of at most `limit` final jobs that were deleted or are past their retention."""
        return await self._writer.run(find_outdated, limit)

    async def forget(self, job_ids: Collection[str]) -> list[str]:
        """Delete those of the jobs that are still outdated, and return their ids."""
        return await self._writer.run(forget, job_ids)

    async def tokens_of(self, job_ids: Collection[str]) -> dict[str, int]:
        """Return the newest lease token of every job that exists; only files of that attempt count."""
        found: dict[str, int] = {}
        wanted_ids = sorted(job_ids)
        for start in range(0, len(wanted_ids), AT_ONCE):
            chunk = wanted_ids[start : start + AT_ONCE]
            wanted = sa.select(jobs.c.id, jobs.c.lease_token).where(jobs.c.id.in_(chunk))
            found |= {row.id: row.lease_token for row in await self._database.rows(wanted)}
        return found


def reap(transaction: Transaction, holders: Sequence[str]) -> Sequence[bool | DiffuserveError]:
    """One round, by whoever's turn it is; gives whether it was the caller's."""
    return [_reap_as(transaction, holder) for holder in holders]


def _reap_as(transaction: Transaction, holder: str) -> bool:
    now, last_alive = transaction.now, _take_turn(transaction, holder)
    if last_alive is None:
        return False
    if now - last_alive > _OUTAGE_SECONDS:
        # Nobody could renew a lease while we were away: give that time back, and look next round.
        extra = min(now - last_alive, transaction.config.lease_seconds)
        transaction.execute(sa.update(leases).values(expires_at=leases.c.expires_at + extra))
        log.warning("no reaper ran for %.0f s; leases are extended by %.0f s", now - last_alive, extra)
    sweep_due(transaction)
    expired = transaction.rows(sa.select(leases).where(leases.c.expires_at <= now).limit(AT_ONCE))
    if expired:
        log.warning("%d leases ran out", len(expired))
        finish.lose(transaction, expired)
    batch_cancellation.go_on(transaction)
    late = transaction.rows(sa.select(leases).where(leases.c.stop_at <= now).limit(AT_ONCE))
    if late:
        finish.stop_late(transaction, late)
    return True


def _take_turn(transaction: Transaction, holder: str) -> float | None:
    """When a reaper last ran, if it is this one's turn; the turn passes on after an outage."""
    now = transaction.now
    row = transaction.execute(sa.select(housekeeping).where(housekeeping.c.name == _NAME)).first()
    if row is None:
        first = {"name": _NAME, "holder": holder, "last_alive": now}
        transaction.execute(sa.insert(housekeeping), first)
        return now
    if row.holder != holder and now - row.last_alive <= _OUTAGE_SECONDS:
        return None
    mine = sa.update(housekeeping).where(housekeeping.c.name == _NAME).values(holder=holder, last_alive=now)
    transaction.execute(mine)
    return float(row.last_alive)


def find_outdated(transaction: Transaction, limits: Sequence[int]) -> Sequence[list[str] | DiffuserveError]:
    """Final jobs past their time or deleted; what else is outdated goes at once."""
    forget_workers(transaction, _WORKER_MEMORY_SECONDS)
    queue.drop_empty_lanes(transaction)
    outbox.forget(transaction, _DELIVERY_MEMORY_SECONDS)
    audit.forget(transaction)
    keys = schema.idempotency_keys
    since = transaction.now - transaction.config.idempotency_seconds
    transaction.execute(sa.delete(keys).where(keys.c.created_at <= since))
    _forget_batches(transaction)
    return [_outdated(transaction, limit) for limit in limits]


def _forget_batches(transaction: Transaction) -> None:
    """Those whose items are all gone."""
    batches, longest = schema.batches, max(transaction.config.retention_seconds.values())
    items = sa.select(jobs.c.id).where(jobs.c.batch_id == batches.c.id)
    is_old = batches.c.finished_at <= transaction.now - longest
    transaction.execute(sa.delete(batches).where(is_old, ~items.exists()))


def _outdated(transaction: Transaction, limit: int) -> list[str]:
    """By status, so that each look is a walk along an index."""
    found: list[str] = []
    for outdated in _outdated_kinds(transaction):
        found += [row.id for row in transaction.rows(sa.select(jobs.c.id).where(outdated).limit(limit))]
    return list(dict.fromkeys(found))[:limit]


def _outdated_kinds(transaction: Transaction) -> list[sa.ColumnElement[bool]]:
    """Final jobs that were deleted, and those past the time that their status is kept.

    A batch stays whole until the last of its items would have to go.
    """
    erased = sa.and_(jobs.c.is_erased, jobs.c.status.in_(sorted(FINAL_STATUSES)))
    kept = transaction.config.retention_seconds
    longest = max(kept.values())
    return [erased] + [
        sa.and_(
            jobs.c.status == status,
            jobs.c.finished_at <= transaction.now - seconds,
            sa.or_(jobs.c.batch_id.is_(None), jobs.c.finished_at <= transaction.now - longest),
        )
        for status, seconds in kept.items()
    ]


def forget(transaction: Transaction, batches: Sequence[Collection[str]]) -> Sequence[list[str]]:
    """Delete jobs and their logs for good; gives those that were still outdated: one may have been
    queued again since it was found."""
    return [_forget(transaction, batch) for batch in batches]


def _forget(transaction: Transaction, job_ids: Collection[str]) -> list[str]:
    still = sa.select(jobs.c.id).where(jobs.c.id.in_(list(job_ids)), sa.or_(*_outdated_kinds(transaction)))
    ids = [row.id for row in transaction.rows(still)]
    if ids:
        transaction.execute(sa.delete(schema.job_events).where(schema.job_events.c.job_id.in_(ids)))
        transaction.execute(sa.delete(jobs).where(jobs.c.id.in_(ids)))
    return ids
