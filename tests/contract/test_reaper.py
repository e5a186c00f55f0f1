"""The reaper: leases after an outage, and the deletion of outdated jobs and files."""

from pathlib import Path

from diffuserve.domain.job import JobStatus
from diffuserve.jobs.config import DAY
from diffuserve.jobs.reaper import Reaper
from diffuserve.jobs.store import JobStore
from diffuserve.storage.local import LocalArtifactStore
from diffuserve.testing.fake_clock import FakeClock
from support.store_driver import (
    Time,
    add_worker,
    claim_one,
    complete,
    fail,
    new_job,
    release,
)


async def test_leases_survive_an_outage_of_the_control_plane(job_store: JobStore, clock: FakeClock) -> None:
    time = Time(job_store, clock)
    job = await job_store.jobs.submit(new_job())
    worker = await add_worker(job_store)
    await job_store.housekeeping.reap("first")
    lease = await claim_one(job_store, worker)
    time.clock.advance(300.0)
    await job_store.housekeeping.reap("second")
    assert (await job_store.jobs.get(job.id)).status is JobStatus.QUEUED, "ten leases are more than one"

    lease = await claim_one(job_store, worker)
    time.clock.advance(29.0)
    await job_store.housekeeping.reap("second")
    for _ in range(10):
        time.clock.advance(2.0)
        await job_store.housekeeping.reap("second")
    assert (await job_store.jobs.get(job.id)).status is JobStatus.RUNNING, "29 seconds were given back"
    await complete(job_store, lease)


async def test_one_reaper_works_at_a_time(job_store: JobStore, clock: FakeClock) -> None:
    assert await job_store.housekeeping.reap("first")
    assert not await job_store.housekeeping.reap("second")
    clock.advance(6.0)
    assert await job_store.housekeeping.reap("second"), "the first is taken for dead"
    assert not await job_store.housekeeping.reap("first")


async def test_outdated_jobs_are_deleted_with_their_files(
    job_store: JobStore, clock: FakeClock, tmp_path: Path
) -> None:
    artifacts = LocalArtifactStore(tmp_path / "files")
    reaper = Reaper(job_store.housekeeping, artifacts)
    worker = await add_worker(job_store)
    failed, succeeded = [await job_store.jobs.submit(new_job()) for _ in range(2)]
    await fail(job_store, await claim_one(job_store, worker), retryable=False)
    await complete(job_store, await claim_one(job_store, worker))
    for job in (failed, succeeded):
        (tmp_path / "files" / job.id / "1").mkdir(parents=True)
    clock.advance(DAY + 60)
    await reaper.forget_outdated()
    assert [job.id for job in await job_store.jobs.list_jobs()] == [succeeded.id]
    assert await job_store.jobs.events_after(failed.id) == []
    assert [path.name for path in (tmp_path / "files").iterdir()] == [succeeded.id]
    clock.advance(7 * DAY)
    await reaper.forget_outdated()
    assert await job_store.jobs.list_jobs() == []


async def test_files_that_belong_to_no_job_are_deleted(job_store: JobStore, tmp_path: Path) -> None:
    artifacts = LocalArtifactStore(tmp_path / "files")
    job = await job_store.jobs.submit(new_job())
    worker = await add_worker(job_store)
    await release(job_store, await claim_one(job_store, worker))
    await complete(job_store, await claim_one(job_store, worker))
    for folder in (f"{job.id}/1", f"{job.id}/2", "job_unknown/1"):
        (tmp_path / "files" / folder).mkdir(parents=True)
    await Reaper(job_store.housekeeping, artifacts).sweep_orphans(-1.0)
    left = [str(path.relative_to(tmp_path / "files")) for path in (tmp_path / "files").glob("*/*")]
    assert left == [f"{job.id}/2"]
