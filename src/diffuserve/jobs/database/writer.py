"""Group commit: commands that arrive while one transaction commits share the next.

A commit waits for the disk, and takes many times as long as the statements of a command. So one task writes,
and each of its transactions executes all waiting commands. Commands of one class are applied together, so
that they can share statements too.
"""

import asyncio
import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Self

import sqlalchemy as sa

from diffuserve.domain.errors import DiffuserveError, ServerUnavailable
from diffuserve.domain.jobs.job import EndedJob
from diffuserve.events.base import EventBus
from diffuserve.jobs.database import schema, tallies, usage
from diffuserve.jobs.database.command import Command, Outcome
from diffuserve.jobs.database.connections import Database, Transaction
from diffuserve.jobs.database.lane_change import LaneChange
from diffuserve.jobs.database.outages import retry_while_unavailable

_RECENT_SECONDS = 3.0  # the reaper of every control plane writes once a second
_PROBE_SECONDS = 2.0
_PROBE_BYTES = 16_384  # needs new pages, so that a full database refuses it
_MAX_BATCH = 256  # bounds how long one transaction holds the write lock
_MAX_WAITING = 20_000  # bounds memory while the database is slow


@dataclass
class _Waiting(Generic[Outcome]):
    command: Command[Outcome]
    outcome: asyncio.Future[Outcome] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def settle(self, outcome: Outcome | DiffuserveError) -> None:
        if self.outcome.done():  # the caller was canceled; its command is committed all the same
            return
        if isinstance(outcome, DiffuserveError):
            self.outcome.set_exception(outcome)
        else:
            self.outcome.set_result(outcome)

    def fail(self, error: Exception) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)


@dataclass(frozen=True)
class ProbeWrite(Command[None]):
    """Write some pages and free them again, to find out whether the database can be written."""

    @classmethod
    def apply_many(cls, transaction: Transaction, commands: Sequence[Self]) -> list[None]:
        probe = {"name": "probe", "holder": "0" * _PROBE_BYTES, "last_alive": transaction.now}
        transaction.execute(sa.insert(schema.housekeeping), probe)
        transaction.execute(sa.delete(schema.housekeeping).where(schema.housekeeping.c.name == "probe"))
        return [None] * len(commands)


class Writer:
    """The only task of this process that writes to the database."""

    def __init__(self, database: Database, bus: EventBus) -> None:
        self._database = database
        self._bus = bus
        self.on_ended: Callable[[EndedJob], None] = lambda _ended: None
        self.on_requeued: Callable[[str], None] = lambda _cause: None
        self.on_expired: Callable[[int], None] = lambda _num_leases: None
        self.on_lane_changes: Callable[[Sequence[LaneChange]], None] = lambda _changes: None
        self._waiting: list[_Waiting[Any]] = []
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._committed_at = -math.inf
        self._is_failing = False  # until a probe succeeds: smaller writes may succeed on a full disk

    def start(self) -> None:
        self._task = asyncio.create_task(self._write_forever(), name="job-store-writer")

    async def close(self) -> None:
        """Write all commands that wait, then stop."""
        while self._waiting:
            await asyncio.sleep(0.01)
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def run(self, command: Command[Outcome]) -> Outcome:
        """Apply a command in the next transaction; return its outcome once that is durable.

        Raise `ServerUnavailable` while the database is unreachable. The command may then still have
        been committed.
        """
        if len(self._waiting) >= _MAX_WAITING:
            raise ServerUnavailable("too many writes wait for the database; try again later", retry_after=5)
        waiting = _Waiting(command)
        self._waiting.append(waiting)
        self._arrived.set()
        return await waiting.outcome

    async def check(self) -> None:
        """Raise `ServerUnavailable` unless writes are committed now.

        A commit in the last few seconds proves it; if there is none, or a write has failed since, a small
        write is tried.
        """
        is_recent = asyncio.get_running_loop().time() - self._committed_at <= _RECENT_SECONDS
        if is_recent and not self._is_failing:
            return
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                await self.run(ProbeWrite())
        except TimeoutError as error:
            message = f"no write to the database was committed within {_PROBE_SECONDS:g} s"
            raise ServerUnavailable(message, retry_after=1) from error
        self._is_failing = False

    async def _write_forever(self) -> None:
        while True:
            await self._arrived.wait()
            batch = self._waiting[:_MAX_BATCH]
            await self._write(batch)
            # Removed only now: `close` waits for the list to become empty.
            del self._waiting[: len(batch)]
            if not self._waiting:
                self._arrived.clear()

    async def _write(self, batch: list[_Waiting[Any]]) -> None:
        commands = [waiting.command for waiting in batch]
        try:
            outcomes, committed = await retry_while_unavailable(
                lambda is_retry: self._database.write(
                    lambda transaction: (_apply(transaction, commands), transaction), is_retry
                )
            )
        except Exception as error:
            await self._after_error(batch, error)
            return
        self._committed_at = asyncio.get_running_loop().time()
        self._publish(committed)
        for waiting, outcome in zip(batch, outcomes, strict=True):
            waiting.settle(outcome)

    async def _after_error(self, batch: list[_Waiting[Any]], error: Exception) -> None:
        self._is_failing |= isinstance(error, ServerUnavailable)
        if len(batch) == 1 or isinstance(error, ServerUnavailable):
            for waiting in batch:
                waiting.fail(error)
            return
        # One of the commands is faulty, and nothing was committed: apply each by itself, so that only
        # the faulty one fails.
        for waiting in batch:
            await self._write([waiting])

    def _publish(self, committed: Transaction) -> None:
        self.on_lane_changes(committed.lane_changes)
        for topic, message in committed.messages:
            self._bus.publish(topic, message)
        for ended in committed.ended:
            self.on_ended(ended)
        for cause in committed.requeue_causes:
            self.on_requeued(cause)
        self.on_expired(committed.num_expired)


def _apply(transaction: Transaction, commands: Sequence[Command[Any]]) -> list[Any]:
    """Return the outcome of each command, in their order."""
    indexes_by_class: dict[type[Command[Any]], list[int]] = defaultdict(list)
    for index, command in enumerate(commands):
        indexes_by_class[type(command)].append(index)
    outcomes: list[Any] = [None] * len(commands)
    for command_class, indexes in indexes_by_class.items():
        applied = command_class.apply_many(transaction, [commands[index] for index in indexes])
        for index, outcome in zip(indexes, applied, strict=True):
            outcomes[index] = outcome
    transaction.tally.add_jobs(transaction.ended)
    tallies.save(transaction)
    usage.save(transaction)
    return outcomes
