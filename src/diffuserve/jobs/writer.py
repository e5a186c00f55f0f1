"""Group commit: operations that arrive while one transaction commits share the next.

A commit waits for the disk; an operation costs a fraction of that. So one task writes, and every
transaction takes all that is waiting. Operations of a kind are handed over together, which lets
them share statements as well.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from diffuserve.domain.errors import DiffuserveError, ServerUnavailable
from diffuserve.events.base import EventBus
from diffuserve.jobs.database import Database, Ended, Transaction, retry_while_unavailable

I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741
Operation = Callable[[Transaction, Sequence[I]], Sequence[O | DiffuserveError]]
"""Does many of a kind; an outcome that is an error belongs to its caller alone and changed nothing.

It may be done again when the answer of the database was lost, and then finds its own work.
"""

_MAX_BATCH = 256
_MAX_WAITING = 20_000


@dataclass
class _Waiting(Generic[I, O]):
    operation: Operation[I, O]
    item: I
    outcome: asyncio.Future[O]


class Writer:
    """The only one in this process that writes to the database."""

    def __init__(self, database: Database, bus: EventBus) -> None:
        self._database = database
        self._bus = bus
        self.on_ended: Callable[[Ended], None] = lambda _ended: None
        self._waiting: list[_Waiting[Any, Any]] = []
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._write_for_ever(), name="job-store-writer")

    async def close(self) -> None:
        """What was handed in before is still written."""
        while self._waiting:
            await asyncio.sleep(0.01)
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def run(self, operation: Operation[I, O], item: I) -> O:
        """Do it in the next transaction; returns once that is durable.

        Raises `ServerUnavailable` when the database stays away. The operation may then still have
        been done.
        """
        if len(self._waiting) >= _MAX_WAITING:
            raise ServerUnavailable("the database does not keep up; try again later", retry_after=5)
        waiting = _Waiting(operation, item, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._arrived.set()
        outcome: O = await waiting.outcome
        return outcome

    async def _write_for_ever(self) -> None:
        while True:
            await self._arrived.wait()
            batch = self._waiting[:_MAX_BATCH]
            await self._write(batch)
            del self._waiting[: len(batch)]
            if not self._waiting:
                self._arrived.clear()

    async def _write(self, batch: list[_Waiting[Any, Any]]) -> None:
        try:
            outcomes, done = await retry_while_unavailable(lambda is_retry: self._commit(batch, is_retry))
        except Exception as error:
            if len(batch) == 1 or isinstance(error, ServerUnavailable):
                return _fail(batch, error)
            for one in batch:  # one of them is at fault: alone it fails alone
                await self._write([one])
            return
        self._tell(done)
        for one, outcome in zip(batch, outcomes, strict=True):
            _settle(one.outcome, outcome)

    def _tell(self, done: Transaction) -> None:
        for topic, message in done.notices:
            self._bus.publish(topic, message)
        for ended in done.ended:
            self.on_ended(ended)

    async def _commit(self, batch: list[_Waiting[Any, Any]], is_retry: bool) -> tuple[list[Any], Transaction]:
        return await self._database.write(lambda transaction: _do_all(transaction, batch), is_retry)


def _do_all(transaction: Transaction, batch: list[_Waiting[Any, Any]]) -> tuple[list[Any], Transaction]:
    groups: dict[Operation[Any, Any], list[int]] = {}
    for index, one in enumerate(batch):
        groups.setdefault(one.operation, []).append(index)
    outcomes: list[Any] = [None] * len(batch)
    for operation, indexes in groups.items():
        done = operation(transaction, [batch[index].item for index in indexes])
        for index, outcome in zip(indexes, done, strict=True):
            outcomes[index] = outcome
    return outcomes, transaction


def _settle(future: asyncio.Future[Any], outcome: Any) -> None:
    if future.done():  # the caller went away; what it asked for is done all the same
        return
    if isinstance(outcome, DiffuserveError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _fail(batch: list[_Waiting[Any, Any]], error: Exception) -> None:
    for one in batch:
        if not one.outcome.done():
            one.outcome.set_exception(error)
