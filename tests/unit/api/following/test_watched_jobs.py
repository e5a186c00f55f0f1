"""Jobs that are watched: by those who follow them, and for a while by those who read them."""

import asyncio

from diffuserve.api.following.watched_jobs import WatchedJobs
from diffuserve.events.memory import MemoryEventBus
from support.virtual_time import in_virtual_time

JOBS = ("a", "b")


def test_a_job_is_watched_as_long_as_anybody_watches_it() -> None:
    watched = WatchedJobs(MemoryEventBus())
    with watched.watching("a"):
        with watched.watching("a"):
            assert watched.among(JOBS) == ("a",)
        assert watched.among(JOBS) == ("a",)
    assert watched.among(JOBS) == ()


@in_virtual_time
async def test_a_job_that_was_read_is_watched_until_it_is_not_read_any_more() -> None:
    watched = WatchedJobs(MemoryEventBus())
    for _ in range(3):
        watched.look("b")
        await asyncio.sleep(8)
        assert watched.among(JOBS) == ("b",)
    await asyncio.sleep(8)
    assert watched.among(JOBS) == ()


def test_what_is_watched_on_one_bus_is_watched_for_all_who_share_it() -> None:
    bus = MemoryEventBus()
    with WatchedJobs(bus).watching("a"):
        assert WatchedJobs(bus).among(JOBS) == ("a",)
