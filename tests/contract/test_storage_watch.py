"""The watch over an artifact store: what it notices, whom it tells, and what it costs."""

import logging
from dataclasses import dataclass

import pytest

from diffuserve.domain.errors import StorageAway
from diffuserve.storage import watch
from diffuserve.storage.watch import StorageWatch
from diffuserve.telemetry import outage_log
from diffuserve.testing.fake_clock import FakeClock
from support.faulty_proxy import Delay, Fault, FaultyProxy, Respond
from support.s3 import S3Server, bucket_at
from support.waiting import HANG_SECONDS


@dataclass
class Watched:
    """A bucket behind a proxy, and the watch over it."""

    watch: StorageWatch
    proxy: FaultyProxy
    clock: FakeClock

    async def look_after(self, seconds: float) -> bool:
        self.clock.advance(seconds)
        await self.watch.look()
        return self.watch.is_up


@pytest.fixture
def watched(proxy: FaultyProxy, bucket: str) -> Watched:
    clock = FakeClock(0.0)
    return Watched(StorageWatch(bucket_at(proxy.url, bucket, max_retries=0), clock), proxy, clock)


@pytest.mark.parametrize("fault", [Respond(503), Respond(403)], ids=repr)
async def test_a_store_that_fails_or_refuses_is_away_until_it_takes_files_again(
    watched: Watched, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    assert await watched.look_after(5.0)
    watched.watch.check()
    watched.proxy.always = fault
    assert not await watched.look_after(5.0)
    assert not await watched.look_after(5.0)
    with pytest.raises(StorageAway, match=r"^the artifact store is away since 5 s; .* log says why$") as away:
        watched.watch.check()
    assert away.value.retry_after > 0
    watched.proxy.always = None
    assert await watched.look_after(5.0)
    assert levels_of(caplog) == [logging.ERROR, logging.WARNING], "when it goes and when it comes back"


def levels_of(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [record.levelno for record in caplog.records if record.name == outage_log.__name__]


async def test_a_bucket_that_vanished_is_away_although_no_file_is_expected(
    s3: S3Server, watched: Watched, bucket: str
) -> None:
    s3.client.delete_bucket(Bucket=bucket)
    assert not await watched.look_after(5.0)
    s3.client.create_bucket(Bucket=bucket)
    assert await watched.look_after(5.0)


async def test_the_log_reminds_once_a_minute(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    watched.proxy.always = Respond(503)
    for _ in range(25):
        await watched.look_after(5.0)
    assert len(levels_of(caplog)) == 3, "at once, after 60 s and after 120 s"


async def test_a_store_that_can_be_read_and_not_written_is_noticed_within_five_minutes(
    watched: Watched, proxy: FaultyProxy
) -> None:
    looks = 0
    proxy.next_fault = lambda method, path: Respond(507) if method == "PUT" else None  # type: ignore[method-assign]
    while await watched.look_after(5.0):
        looks += 1
    assert 50 <= looks <= 60


async def test_a_look_at_a_store_that_is_there_is_one_request(watched: Watched) -> None:
    await watched.look_after(5.0)
    assert [method for method, _ in watched.proxy.requests] == ["GET"]


async def test_a_store_that_hangs_is_away(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_LONGEST_LOOK_SECONDS", 0.2)
    watched.proxy.always = Delay(2 * HANG_SECONDS)
    assert not await watched.look_after(5.0)
