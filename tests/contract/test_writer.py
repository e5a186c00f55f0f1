"""Group commit: commands that share a transaction, and commands that fail."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Self

import pytest
import sqlalchemy as sa

from diffuserve.domain.errors import Conflict, DiffuserveError
from diffuserve.domain.jobs.job import EndedJob, JobStatus
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.command import Command, SingleCommand
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.database.writer import Writer
from diffuserve.jobs.store import JobStore


def ended_job(name: str) -> EndedJob:
    return EndedJob(
        id=name,
        tenant_id="ada",
        model="m",
        status=JobStatus.SUCCEEDED,
        input={},
        created_at=0.0,
        started_at=None,
        finished_at=0.0,
    )


@dataclass(frozen=True)
class CountPeers(Command[int]):
    """Return how many commands of this class were applied together."""

    @classmethod
    def apply_many(cls, transaction: Transaction, commands: Sequence[Self]) -> list[int]:
        return [len(commands)] * len(commands)


@dataclass(frozen=True)
class StoreSecret(SingleCommand[str]):
    """Store a row; refuse the value `refused`, and break the transaction on `broken`."""

    value: str

    def apply(self, transaction: Transaction) -> str | DiffuserveError:
        if self.value == "refused":
            return Conflict("refused")
        row = {"owner": self.value, "secret": self.value, "created_at": transaction.now}
        transaction.execute(sa.insert(schema.signing_secrets), row)
        if self.value == "broken":
            raise ZeroDivisionError
        transaction.publish("stored", {"value": self.value})
        transaction.ended.append(ended_job(self.value))
        return self.value


@pytest.fixture
async def writer(job_store: JobStore, bus: MemoryEventBus) -> AsyncIterator[Writer]:
    writer = Writer(job_store.database, bus)
    writer.start()
    yield writer
    await writer.close()


async def stored(job_store: JobStore) -> set[str]:
    return {row.owner for row in await job_store.database.rows(sa.select(schema.signing_secrets))}


async def test_waiting_commands_of_a_class_are_applied_together(writer: Writer) -> None:
    first, stored_value, second = await asyncio.gather(
        writer.run(CountPeers()), writer.run(StoreSecret("a")), writer.run(CountPeers())
    )
    assert (first, stored_value, second) == (2, "a", 2)


async def test_a_refused_command_fails_alone(writer: Writer, job_store: JobStore) -> None:
    values = ("a", "refused", "b")
    outcomes = await asyncio.gather(
        *(writer.run(StoreSecret(value)) for value in values), return_exceptions=True
    )
    assert isinstance(outcomes[1], Conflict)
    assert (outcomes[0], outcomes[2]) == ("a", "b")
    assert await stored(job_store) == {"a", "b"}


async def test_a_faulty_command_is_rolled_back_and_fails_alone(writer: Writer, job_store: JobStore) -> None:
    values = ("a", "broken", "b")
    outcomes = await asyncio.gather(
        *(writer.run(StoreSecret(value)) for value in values), return_exceptions=True
    )
    assert isinstance(outcomes[1], ZeroDivisionError)
    assert (outcomes[0], outcomes[2]) == ("a", "b")
    assert await stored(job_store) == {"a", "b"}


async def test_a_command_is_applied_even_if_its_caller_is_canceled(
    writer: Writer, job_store: JobStore
) -> None:
    task = asyncio.create_task(writer.run(StoreSecret("a")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await writer.run(CountPeers())
    assert await stored(job_store) == {"a"}


async def test_messages_and_ends_are_published_only_after_the_commit(
    writer: Writer, bus: MemoryEventBus
) -> None:
    ended: list[EndedJob] = []
    writer.on_ended = ended.append
    with bus.subscribe("stored") as messages:
        with pytest.raises(ZeroDivisionError):
            await writer.run(StoreSecret("broken"))
        await writer.run(StoreSecret("a"))
        assert await messages.get(1.0) == {"value": "a"}
    assert ended == [ended_job("a")]


async def test_close_writes_the_commands_that_wait(job_store: JobStore, bus: MemoryEventBus) -> None:
    writer = Writer(job_store.database, bus)
    writer.start()
    task = asyncio.create_task(writer.run(StoreSecret("a")))
    await asyncio.sleep(0)
    await writer.close()
    assert await task == "a"
