"""Housekeeping: expired leases, retries that are due, late jobs, and rows past their retention."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from diffuserve.domain.jobs.checkpoint import StoredCheckpoint
from diffuserve.domain.jobs.job import FINAL_STATUSES
from diffuserve.jobs.batches import cancellation as batch_cancellation
from diffuserve.jobs.batches import file_batches
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.database import accepted_work, schema, tallies, usage
from diffuserve.jobs.database.command import SingleCommand
from diffuserve.jobs.database.connections import IDS, Database, Transaction
from diffuserve.jobs.database.queries import rows_of
from diffuserve.jobs.database.writer import Writer
from diffuserve.jobs.files.commands import ForgetExpired
from diffuserve.jobs.files.links import expire_inputs, unlink
from diffuserve.jobs.leases.checkpoints import FindEndedCheckpoints, ForgetCheckpoints
from diffuserve.jobs.leases.make_room import ANY_TO_PREEMPT, FIRST_URGENT, MakeRoom
from diffuserve.jobs.queue import idempotency, ready_queue
from diffuserve.jobs.queue.due import MAX_SWEPT, sweep_due
from diffuserve.jobs.reads import history
from diffuserve.jobs.security import audit
from diffuserve.jobs.tasks import clock_steps, expired_leases
from diffuserve.jobs.webhooks import outbox
from diffuserve.jobs.workers import registry_bounds

_LOOK_SECONDS = 0.25  # between two checks while an interactive job waits

jobs, job_events, leases, housekeeping = schema.jobs, schema.job_events, schema.leases, schema.housekeeping
_NAME = "reaper"
_TOKENS = ("id", "lease_token", "latents", "checkpoint")


class Housekeeping:
    """The store as its background tasks use it: the reaper and the preemptor.

    Every method raises `ServerUnavailable` while the database is unreachable.
    """

    def __init__(self, database: Database, writer: Writer, config: StoreConfig) -> None:
        self._database, self._writer, self._config = database, writer, config

    async def reap(self, holder: str) -> bool:
        """Do the due work if it is the turn of the reaper `holder`; return whether it was."""
        return await self._writer.run(Reap(holder))

    async def make_room(self) -> float | None:
        """Preempt batch jobs for interactive ones that have waited too long.

        Return the seconds until the next check, or `None` while no interactive job waits.
        """
        after = self._config.preempt_after_seconds
        first = (await self._database.rows(FIRST_URGENT))[0].head_at if after else None
        if first is None:
            return None
        left = first + after - await self._database.now()
        if left <= 0 and await self._database.rows(ANY_TO_PREEMPT):
            await self._writer.run(MakeRoom())
        return min(left, after) if left > 0 else _LOOK_SECONDS

    async def find_outdated(self, limit: int) -> list[str]:
        """Return the ids of at most `limit` final jobs that were deleted or are past their retention."""
        return await self._writer.run(FindOutdated(limit))

    async def forget(self, job_ids: Collection[str]) -> list[str]:
        """Delete those of the jobs that are still outdated, and return their ids."""
        return await self._writer.run(ForgetJobs(job_ids))

    async def forget_files(self) -> list[str]:
        """Forget some uploaded images that have expired and that no job needs; return their ids."""
        return await self._writer.run(ForgetExpired())

    async def known_files(self, file_ids: Collection[str]) -> set[str]:
        """Return those of the uploaded images that exist."""
        files = schema.files
        known = sa.select(files.c.id).where(files.c.id.in_(IDS))
        rows = await rows_of(self._database, known, file_ids)
        return {row.id for row in rows}

    async def ended_live(self, since: float, seconds: float) -> tuple[list[tuple[str, int]], float]:
        """Return live jobs, with their lease tokens, that ended at least `seconds` ago, but after `since`.

        The second value is `since` for the next call.
        """
        return await self._writer.run(FindEndedLive(since, seconds))

    async def ended_checkpoints(self, limit: int) -> dict[str, StoredCheckpoint]:
        """Return at most `limit` checkpoints of jobs that have ended, by job."""
        return await self._writer.run(FindEndedCheckpoints(limit))

    async def forget_checkpoints(self, job_ids: Collection[str]) -> None:
        """Forget the checkpoints of jobs that have ended, once their files are deleted."""
        await self._writer.run(ForgetCheckpoints(job_ids))

    async def tokens_of(self, job_ids: Collection[str]) -> dict[str, frozenset[int]]:
        """Return the lease tokens whose files are in use, for every existing job.

        They are the newest one, and those under which its latents and its checkpoint were stored.
        """
        found: dict[str, frozenset[int]] = {}
        wanted_ids = sorted(job_ids)
        for start in range(0, len(wanted_ids), MAX_SWEPT):
            chunk = wanted_ids[start : start + MAX_SWEPT]
            wanted = sa.select(*(jobs.c[name] for name in _TOKENS)).where(jobs.c.id.in_(chunk))
            found |= {row.id: _tokens_in(row) for row in await self._database.rows(wanted)}
        return found


def _tokens_in(row: sa.Row[Any]) -> frozenset[int]:
    kept = [orjson.loads(text)["lease_token"] for text in (row.latents, row.checkpoint) if text is not None]
    return frozenset([row.lease_token, *kept])


@dataclass(frozen=True)
class Reap(SingleCommand[bool]):
    """Do one round of the reaper `holder` if it is its turn; the outcome is whether it was."""

    holder: str

    def apply(self, transaction: Transaction) -> bool:
        last_alive = _take_turn(transaction, self.holder)
        if last_alive is None:
            return False
        if transaction.now < last_alive:
            clock_steps.follow_back(transaction, last_alive - transaction.now)
        expired_leases.spare(transaction, transaction.now - last_alive)
        sweep_due(transaction)
        expired_leases.end(transaction, last_alive)
        batch_cancellation.cancel_abandoned(transaction)
        batch_cancellation.resume(transaction)
        expired_leases.end_late(transaction)
        return True


@dataclass(frozen=True)
class FindOutdated(SingleCommand[list[str]]):
    """Return the ids of at most `limit` outdated jobs, and delete all other outdated rows at once."""

    limit: int

    def apply(self, transaction: Transaction) -> list[str]:
        registry_bounds.forget_workers(transaction)
        registry_bounds.forget_models(transaction)
        ready_queue.drop_empty_lanes(transaction)
        outbox.forget(transaction)
        audit.forget(transaction)
        tallies.forget(transaction)
        usage.forget(transaction)
        history.forget(transaction)
        accepted_work.forget(transaction)
        idempotency.forget(transaction)
        _forget_batches(transaction)
        file_batches.forget(transaction)
        return _outdated(transaction, self.limit)


@dataclass(frozen=True)
class ForgetJobs(SingleCommand[list[str]]):
    """Delete jobs and their logs for good; the outcome is the ids of those deleted.

    A job that is no longer outdated stays: it may have been requeued since it was found.
    """

    job_ids: Collection[str]

    def apply(self, transaction: Transaction) -> list[str]:
        outdated = sa.or_(*_outdated_kinds(transaction))
        wanted = sa.select(jobs.c.id).where(jobs.c.id.in_(list(self.job_ids)), outdated)
        job_ids = [row.id for row in transaction.rows(wanted)]
        if job_ids:
            transaction.execute(sa.delete(job_events).where(job_events.c.job_id.in_(job_ids)))
            expire_inputs(transaction, job_ids)
            unlink(transaction, job_ids)
            transaction.execute(sa.delete(jobs).where(jobs.c.id.in_(job_ids)))
        return job_ids


@dataclass(frozen=True)
class FindEndedLive(SingleCommand[tuple[list[tuple[str, int]], float]]):
    """Find the live jobs that ended after `since`, and at least `seconds` ago."""

    since: float
    seconds: float

    def apply(self, transaction: Transaction) -> tuple[list[tuple[str, int]], float]:
        until = transaction.now - self.seconds
        wanted = sa.select(jobs.c.id, jobs.c.lease_token).where(
            jobs.c.status.in_(sorted(FINAL_STATUSES)),
            jobs.c.finished_at > self.since,
            jobs.c.finished_at <= until,
            jobs.c.live,
        )
        return [(row.id, row.lease_token) for row in transaction.rows(wanted)], until


def _take_turn(transaction: Transaction, holder: str) -> float | None:
    """Return the time of the last round if this reaper may do the next one, else `None`.

    Another reaper takes over once the current one was silent for the length of an outage, or if its last
    round is in the future, as after the clock was set back.
    """
    now = transaction.now
    row = transaction.execute(sa.select(housekeeping).where(housekeeping.c.name == _NAME)).first()
    if row is None:
        first = {"name": _NAME, "holder": holder, "last_alive": now}
        transaction.execute(sa.insert(housekeeping), first)
        return now
    if row.holder != holder and 0 <= now - row.last_alive <= expired_leases.OUTAGE_SECONDS:
        return None
    mine = sa.update(housekeeping).where(housekeeping.c.name == _NAME).values(holder=holder, last_alive=now)
    transaction.execute(mine)
    return float(row.last_alive)


def _forget_batches(transaction: Transaction) -> None:
    """Delete the batches that ended long ago and have no items left."""
    batches, longest = schema.batches, transaction.config.longest_kept
    items = sa.select(jobs.c.id).where(jobs.c.batch_id == batches.c.id)
    is_old = batches.c.finished_at <= transaction.now - longest
    transaction.execute(sa.delete(batches).where(is_old, ~items.exists()))


def _outdated(transaction: Transaction, limit: int) -> list[str]:
    """Return ids kind by kind, each found with an index that suits it."""
    found: list[str] = []
    for outdated in _outdated_kinds(transaction):
        found += [row.id for row in transaction.rows(sa.select(jobs.c.id).where(outdated).limit(limit))]
    return list(dict.fromkeys(found))[:limit]


def _outdated_kinds(transaction: Transaction) -> list[sa.ColumnElement[bool]]:
    """Return conditions for final jobs: deleted by their client, past their own retention, or their status's.

    Items of a batch are kept for the longest retention of all, so that a batch stays whole, and those of a
    file's until their batch has ended.
    """
    erased = sa.and_(jobs.c.is_erased, jobs.c.status.in_(sorted(FINAL_STATUSES)))
    is_awaited = file_batches.has_to_write(jobs.c.batch_id)
    kept, longest = transaction.config.retention_seconds, transaction.config.longest_kept
    return [erased, sa.and_(jobs.c.forget_at <= transaction.now, ~is_awaited)] + [
        sa.and_(
            jobs.c.status == status,
            jobs.c.finished_at <= transaction.now - seconds,
            sa.or_(jobs.c.batch_id.is_(None), jobs.c.finished_at <= transaction.now - longest),
            ~is_awaited,
        )
        for status, seconds in kept.items()
    ]
