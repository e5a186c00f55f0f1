"""The reaper: leases after an outage, and the deletion of outdated jobs and files."""

import asyncio
from pathlib import Path

import pytest

from diffuserve.domain.errors import ArtifactNotFound
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.jobs.webhook import JOB_EVENTS, DeliveryAttempt, DueDelivery, Webhook
from diffuserve.domain.workers.worker import WorkerState
from diffuserve.jobs.config import DAY
from diffuserve.jobs.policy.webhook_turns import SendLimits
from diffuserve.jobs.store import JobStore
from diffuserve.jobs.tasks import reaper as reaper_module
from diffuserve.jobs.tasks.reaper import Reaper
from diffuserve.storage.live_parts import live_key
from diffuserve.storage.local import LocalArtifactStore
from diffuserve.testing.fake_clock import FakeClock
from diffuserve.wiring.control import running
from support.store_driver import (
    Time,
    add_worker,
    claim,
    claim_one,
    complete,
    events,
    fail,
    new_job,
    release,
    send_heartbeat,
)
from support.waiting import eventually


@pytest.mark.parametrize("seconds", [6.0, 29.0, 300.0, 30 * DAY])
async def test_after_an_outage_of_any_length_a_worker_has_a_whole_lease_to_be_heard(
    job_store: JobStore, clock: FakeClock, seconds: float
) -> None:
    time = Time(job_store, clock)
    job, worker = await job_store.jobs.submit(new_job()), await add_worker(job_store)
    lease = await claim_one(job_store, worker)
    await time.pass_by(28.0)  # no heartbeat came, since the outage had begun for some
    clock.advance(seconds)
    await job_store.housekeeping.reap("second")
    await time.pass_by(28.0)
    assert (await job_store.jobs.get(job.id)).status is JobStatus.RUNNING
    await complete(job_store, lease)
    assert (await job_store.jobs.get(job.id)).attempt == 1


async def test_a_worker_that_died_in_an_outage_is_lost_a_lease_after_it(
    job_store: JobStore, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    time = Time(job_store, clock)
    job, worker = await job_store.jobs.submit(new_job()), await add_worker(job_store, name="w1")
    await claim_one(job_store, worker)
    await job_store.housekeeping.reap("reaper")
    clock.advance(300.0)
    await time.pass_by(32.0)
    assert await events(job_store, job) == ["queued", "running", "requeued"]
    assert "worker w1 is lost: no heartbeat for 332 s, 1 jobs queued again" in caplog.messages


async def test_outages_that_follow_one_another_keep_no_dead_workers_jobs(
    job_store: JobStore, clock: FakeClock
) -> None:
    time = Time(job_store, clock)
    job, worker = await job_store.jobs.submit(new_job()), await add_worker(job_store)
    await claim_one(job_store, worker)
    await job_store.housekeeping.reap("reaper")
    for _ in range(4):
        clock.advance(60.0)
        await time.pass_by(10.0)
    assert (await job_store.jobs.get(job.id)).status is JobStatus.QUEUED


async def test_a_live_worker_has_a_whole_lease_after_each_outage(
    job_store: JobStore, clock: FakeClock
) -> None:
    time = Time(job_store, clock)
    job, worker = await job_store.jobs.submit(new_job()), await add_worker(job_store)
    lease = await claim_one(job_store, worker)
    await job_store.housekeeping.reap("reaper")
    for _ in range(4):
        clock.advance(60.0)
        await time.pass_by(20.0)
        await send_heartbeat(job_store, worker, lease)
        await time.pass_by(2.0)
    assert (await job_store.jobs.get(job.id)).status is JobStatus.RUNNING


async def test_a_jobs_timeout_does_not_run_during_an_outage(job_store: JobStore, clock: FakeClock) -> None:
    time = Time(job_store, clock)
    await job_store.jobs.submit(new_job(timeout=20.0))
    lease = await claim_one(job_store, await add_worker(job_store))
    await job_store.housekeeping.reap("reaper")
    clock.advance(300.0)
    await time.pass_by(10.0)
    assert await complete(job_store, lease) == JobStatus.SUCCEEDED, "it was finished, and could not be told"


async def test_an_idle_worker_that_is_lost_is_told_of_once(
    job_store: JobStore, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    await add_worker(job_store, name="w1")
    await Time(job_store, clock).pass_by(120.0)
    lost = [line for line in caplog.messages if "is lost" in line]
    assert lost == ["worker w1 is lost: no heartbeat for 30 s, 0 jobs queued again"]


async def test_a_worker_that_was_only_not_heard_in_an_outage_is_not_called_lost(
    job_store: JobStore, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    time, worker = Time(job_store, clock), await add_worker(job_store, name="w1")
    await job_store.housekeeping.reap("reaper")
    clock.advance(25.0)
    await time.pass_by(20.0)
    await send_heartbeat(job_store, worker)
    await time.pass_by(20.0)
    assert "is lost" not in caplog.text


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


async def test_a_clock_that_goes_back_stops_no_reaper(
    job_store: JobStore, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    await job_store.housekeeping.reap("first")
    clock.advance(-3_600.0)
    assert await job_store.housekeeping.reap("second"), "the first may be dead; nothing else would tell"
    assert "clock went back by 3600.0 s" in caplog.text
    assert not await job_store.housekeeping.reap("first"), "one reaper works at a time"


async def test_a_dead_workers_job_is_run_again_although_the_clock_went_back(
    job_store: JobStore, clock: FakeClock
) -> None:
    time = Time(job_store, clock)
    job, worker = await job_store.jobs.submit(new_job()), await add_worker(job_store)
    await claim_one(job_store, worker)
    await job_store.housekeeping.reap("reaper")
    clock.advance(-3_600.0)
    await time.pass_by(28.0)
    assert (await job_store.jobs.get(job.id)).status is JobStatus.RUNNING, "it has a whole lease to be heard"
    await time.pass_by(6.0)
    assert (await job_store.jobs.get(job.id)).status is JobStatus.QUEUED
    (listed,) = await job_store.operations.workers()
    assert listed.state is WorkerState.LOST


async def test_timeouts_and_retries_come_due_although_the_clock_went_back(
    job_store: JobStore, clock: FakeClock
) -> None:
    time, worker = Time(job_store, clock), await add_worker(job_store)
    late, failed = await job_store.jobs.submit(new_job(timeout=20.0)), await job_store.jobs.submit(new_job())
    leases = await claim(job_store, worker, num_jobs=2)
    await fail(job_store, leases[1], retryable=True)
    await job_store.housekeeping.reap("reaper")
    clock.advance(-3_600.0)
    await job_store.housekeeping.reap("reaper")
    await time.pass_by(18.0)
    assert (await job_store.jobs.get(late.id)).status is JobStatus.RUNNING, "it has its whole timeout again"
    await time.pass_by(4.0)
    assert (await job_store.jobs.get(late.id)).status is JobStatus.FAILED
    await time.pass_by(job_store.config.retry_cap_seconds)
    (lease,) = await claim(job_store, worker, num_jobs=2)
    assert lease.job_id == failed.id


async def take_due(store: JobStore) -> list[DueDelivery]:
    chosen = await store.webhooks.find_due((), SendLimits(total=2))
    return await store.webhooks.take([delivery.id for delivery in chosen], lease_seconds=60.0)


async def test_webhooks_are_sent_again_although_the_clock_went_back(
    job_store: JobStore, clock: FakeClock
) -> None:
    webhook = Webhook("https://example.com/hook", JOB_EVENTS, "https://example.com")
    worker = await add_worker(job_store)
    for _ in range(2):
        await job_store.jobs.submit(new_job(webhook=webhook))
        await complete(job_store, await claim_one(job_store, worker))
    taken, refused = await take_due(job_store)
    await job_store.webhooks.record(DeliveryAttempt(refused.delivery.id, 500))
    await job_store.housekeeping.reap("reaper")
    clock.advance(-3_600.0)
    await job_store.housekeeping.reap("reaper")
    clock.advance(8.0)
    (retry,) = await take_due(job_store)
    assert retry.delivery.id == refused.delivery.id
    clock.advance(60.0)
    again = {due.delivery.id for due in await take_due(job_store)}
    assert taken.delivery.id in again, "its sender may have died"


async def test_the_parts_of_a_clip_linger_until_slow_readers_had_the_rest(
    job_store: JobStore, clock: FakeClock, tmp_path: Path
) -> None:
    artifacts = LocalArtifactStore(tmp_path / "files")
    reaper = Reaper(job_store.housekeeping, artifacts)
    for _ in range(2):
        await job_store.jobs.submit(new_job(live=True))
    ended, other = await claim(job_store, await add_worker(job_store), num_jobs=2)
    keys = [live_key(lease.job_id, lease.lease_token, 0) for lease in (ended, other)]
    kept = f"{ended.job_id}/{ended.lease_token}/0.mp4"
    for key in (*keys, kept):
        path = tmp_path / "files" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"part")
    await complete(job_store, ended)
    clock.advance(59.0)
    await reaper.forget_live_parts(60.0)
    assert await artifacts.size(keys[0]) == 4, "the job ended a short while ago"
    clock.advance(2.0)
    await reaper.forget_live_parts(60.0)
    with pytest.raises(ArtifactNotFound):
        await artifacts.size(keys[0])
    assert [await artifacts.size(key) for key in (keys[1], kept)] == [4, 4]


class HungStore(LocalArtifactStore):
    """A store whose deletions never end."""

    async def delete(self, prefix: str) -> None:
        await asyncio.Event().wait()


async def test_a_store_that_is_away_holds_up_no_round(
    job_store: JobStore, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper_module, "_PERIOD_SECONDS", 0.01)
    reaper = Reaper(job_store.housekeeping, HungStore(tmp_path / "files"))
    old, lost = await job_store.jobs.submit(new_job()), await job_store.jobs.submit(new_job())
    worker = await add_worker(job_store)
    await fail(job_store, await claim_one(job_store, worker), retryable=False)
    clock.advance(DAY + 60)
    await claim_one(job_store, worker)

    async def is_forgotten() -> bool:
        return old.id not in {job.id for job in await job_store.jobs.list_jobs()}

    async def is_queued() -> bool:
        clock.advance(1.0)
        return (await job_store.jobs.get(lost.id)).status is JobStatus.QUEUED

    async with running(reaper.run()):
        await eventually(is_forgotten)
        await eventually(is_queued)
