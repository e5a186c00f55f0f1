"""Reads that many callers share."""

import asyncio

import pytest

from diffuserve.jobs.reads.shared_reads import FreshReads, SharedReads
from diffuserve.testing.fake_clock import FakeClock
from support.virtual_time import in_virtual_time, now


class Source:
    """A value that grows with every read, and that can be told to fail."""

    def __init__(self) -> None:
        self.reads: list[str] = []
        self.error: Exception | None = None

    async def read(self, key: str) -> int:
        self.reads.append(key)
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return len(self.reads)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def shared(source: Source, clock: FakeClock) -> SharedReads[str, int]:
    return SharedReads(source.read, 1.0, clock)


async def test_callers_share_a_read_until_it_is_too_old(
    shared: SharedReads[str, int], source: Source, clock: FakeClock
) -> None:
    assert await asyncio.gather(*(shared.get("a") for _ in range(50))) == [1] * 50
    clock.advance(0.9)
    assert await shared.get("a") == 1
    clock.advance(0.2)
    assert await shared.get("a") == 2
    assert await shared.get("b") == 3
    assert source.reads == ["a", "a", "b"]


async def test_an_error_reaches_all_who_wait_and_is_not_kept(
    shared: SharedReads[str, int], source: Source
) -> None:
    source.error = OSError("the disk is gone")
    errors = await asyncio.gather(*(shared.get("a") for _ in range(3)), return_exceptions=True)
    assert errors == [source.error] * 3
    source.error = None
    assert await shared.get("a") == 2


async def test_a_caller_that_is_canceled_takes_the_read_from_nobody(
    shared: SharedReads[str, int], source: Source
) -> None:
    leaving, staying = asyncio.create_task(shared.get("a")), asyncio.create_task(shared.get("a"))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == 1
    assert leaving.cancelled() or leaving.cancelling()
    assert source.reads == ["a"]


@in_virtual_time
async def test_fresh_reads_begin_after_the_call_and_are_spaced() -> None:
    begun: list[float] = []

    async def read() -> float:
        begun.append(now())
        await asyncio.sleep(2)
        return begun[-1]

    fresh = FreshReads(read, seconds=10)
    assert await fresh.get() == 0
    assert [*await asyncio.gather(fresh.get(), fresh.get())] == [10, 10]
    during = asyncio.create_task(fresh.get())
    await asyncio.sleep(9)  # until 21, while a read runs that is too old for the next caller
    assert (await during, await fresh.get()) == (20, 30)
    assert begun == [0, 10, 20, 30]


@in_virtual_time
async def test_a_fresh_read_that_fails_is_followed_by_another() -> None:
    source = Source()
    fresh = FreshReads(lambda: source.read("a"), seconds=10)
    source.error = ConnectionError("away")
    with pytest.raises(ConnectionError, match="away"):
        await fresh.get()
    source.error = None
    assert await fresh.get() == 2


@in_virtual_time
async def test_a_canceled_caller_takes_a_fresh_read_from_nobody_else() -> None:
    source = Source()
    fresh = FreshReads(lambda: source.read("a"), seconds=10)
    await fresh.get()
    canceled, patient = asyncio.create_task(fresh.get()), asyncio.create_task(fresh.get())
    await asyncio.sleep(0)
    canceled.cancel()
    assert await patient == 2
