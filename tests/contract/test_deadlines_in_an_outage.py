"""Deadlines while the database is away: nothing is promised meanwhile, and only what is late expires."""

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from diffuserve.domain.errors import ServerUnavailable
from diffuserve.domain.jobs.job import Job, JobStatus
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.database import outages
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.postgres import PostgresServer
from support.store_driver import add_worker, claim, claim_one, complete, new_job

pytestmark = pytest.mark.slow

_OUTAGE_SECONDS = 120.0


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of this test alone, which it stops."""
    folder = Path(tempfile.mkdtemp(prefix="diffuserve-postgres-"))
    folder.chmod(0o755)
    with PostgresServer(folder / "data", fsync=False) as server:
        yield server
    shutil.rmtree(folder, ignore_errors=True)


async def burst(store: JobStore, count: int, seconds: float) -> list[Job]:
    """Submit jobs at the same moment that must end within so many seconds."""
    soon = new_job(cost_seconds=1.0, finish_in=seconds)
    return list(await asyncio.gather(*(store.jobs.submit_in_time(soon) for _ in range(count))))


async def test_an_outage_of_two_minutes_in_a_burst(
    server: PostgresServer, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "_PATIENCE_SECONDS", 0.0)
    store = JobStore(server.url, MemoryEventBus(), StoreConfig(default_plan="pro"), clock)
    await store.open()
    worker = await add_worker(store)
    await burst(store, 1, seconds=60.0)
    lease = await claim_one(store, worker)
    late, patient = await burst(store, 5, seconds=60.0), await burst(store, 20, seconds=300.0)
    await store.housekeeping.reap("here")

    await asyncio.to_thread(server.stop)
    for _ in range(3):
        with pytest.raises(ServerUnavailable, match="try again later") as refused:
            await burst(store, 10, seconds=300.0)
        assert (refused.value.status, refused.value.is_retryable) == (503, True)
    clock.advance(_OUTAGE_SECONDS)
    await asyncio.to_thread(server.revive)

    await store.housekeeping.reap("here")
    assert await complete(store, lease) == JobStatus.SUCCEEDED, "what runs is not stopped at its deadline"
    ended = await store.jobs.get_many([job.id for job in late])
    assert {job.status for job in ended.values()} == {JobStatus.EXPIRED}
    leases = await claim(store, worker, num_jobs=100)
    assert {lease.job_id for lease in leases} == {job.id for job in patient}, "no refused job was stored"
    [accepted] = await burst(store, 1, seconds=60.0)
    estimate = await store.jobs.estimate(accepted)
    assert estimate is not None
    assert estimate.ahead == 0, "nor does one count"
    await store.close()
