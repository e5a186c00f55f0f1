"""Attempts are charged for what they took, however they end and whatever workers say of them."""

import math
from typing import Any

import pytest

from diffuserve.domain.jobs.checkpoint import StoredCheckpoint
from diffuserve.domain.jobs.job import JobError, JobResult, JobStatus, Phase
from diffuserve.domain.resources.usage import UsageField
from diffuserve.domain.workers.worker import (
    Completion,
    Failure,
    Heartbeat,
    HeldLease,
    Lease,
    Release,
    ReleaseCause,
    WorkerRole,
)
from diffuserve.jobs.policy.charges import SLACK_SECONDS
from diffuserve.jobs.reads.usage_reader import UsageQuery
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.store_driver import (
    REPORT,
    Time,
    add_worker,
    claim_one,
    complete,
    hand_over,
    new_job,
    release,
)


async def charged(store: JobStore, tenant: str = "ada") -> float:
    """Return the device-seconds that a tenant was charged in all."""
    standing = (await store.operations.standings({tenant}))[tenant]
    return standing.vtime * standing.weight


async def started(store: JobStore, worker: str | None = None, **values: Any) -> Lease:
    """Return the lease on a new job of 100 predicted device-seconds, 20 of them for its decoding."""
    await store.jobs.submit(new_job(**({"cost_seconds": 100.0, "decode_seconds": 20.0} | values)))
    return await claim_one(store, worker or await add_worker(store))


async def tell(store: JobStore, lease: Lease, step: int, phase: Phase = Phase.DENOISE) -> None:
    """Have a job's worker tell in a heartbeat that so many of ten steps are done."""
    held = HeldLease(job_id=lease.job_id, lease_token=lease.lease_token, phase=phase, step=step, total=10)
    assert lease.worker_id is not None
    await store.leases.heartbeat(lease.worker_id, Heartbeat(report=REPORT, held=(held,)))


async def end(store: JobStore, lease: Lease, seconds: float | None, code: str = "aborted") -> JobStatus:
    """Report what an engine reports of a job that it dropped, or that failed for good."""
    failure = Failure(lease_token=lease.lease_token, error=JobError(code, "…"), actual_seconds=seconds)
    return await store.leases.fail(lease.job_id, failure)


async def put_down(store: JobStore, lease: Lease, seconds: float | None) -> None:
    """Report that a job was put down, with its first checkpoint and so many device-seconds in it."""
    if seconds is not None:
        token = lease.lease_token
        stored = StoredCheckpoint(lease_token=token, slot=0, step=5, size_bytes=1, sha256="aa" * 32)
        await store.leases.keep_checkpoint(lease.job_id, stored)
    cause = ReleaseCause.PREEMPTED
    released = Release(lease_token=lease.lease_token, cause=cause, actual_seconds=seconds)
    await store.leases.release(lease.job_id, released)


@pytest.mark.parametrize(
    ("reported", "told", "cost"),
    [
        pytest.param(64.0, None, 64.0, id="what-its-worker-says"),
        pytest.param(0.0, (8, Phase.DENOISE), 64.0, id="at-least-the-steps-that-were-done"),
        pytest.param(0.0, (10, Phase.UPLOAD), 100.0, id="all-of-a-job-whose-files-were-made"),
        pytest.param(None, None, 70.0, id="without-a-report-what-can-have-passed"),
        pytest.param(0.0, None, 0.0, id="nothing-of-a-job-that-never-began"),
    ],
)
async def test_a_job_that_is_canceled_while_it_runs_costs_what_was_done(
    job_store: JobStore,
    clock: FakeClock,
    reported: float | None,
    told: tuple[int, Phase] | None,
    cost: float,
) -> None:
    lease = await started(job_store)
    clock.advance(70.0 if told != (10, Phase.UPLOAD) else 100.0)
    if told is not None:
        await tell(job_store, lease, *told)
    await job_store.jobs.cancel(lease.job_id)
    assert await end(job_store, lease, reported) == JobStatus.CANCELED
    assert await charged(job_store) == pytest.approx(cost)
    assert (await job_store.jobs.get(lease.job_id)).actual_seconds == (cost or None)
    (used,) = (await job_store.usage.read(UsageQuery(group_by=(UsageField.OUTCOME,)), is_operator=True)).data
    assert used.outcome == "canceled"
    assert used.seconds == pytest.approx(cost)


async def test_a_canceled_job_costs_what_was_done_even_if_its_worker_is_lost_or_hands_it_back(
    job_store: JobStore, clock: FakeClock
) -> None:
    lost, released = await started(job_store), await started(job_store, tenant="bob")
    clock.advance(60.0)
    for lease in (lost, released):
        await tell(job_store, lease, 5)
        await job_store.jobs.cancel(lease.job_id)
    assert await release(job_store, released) == JobStatus.CANCELED
    await Time(job_store, clock).pass_by(2 * job_store.config.lease_seconds)
    assert (await job_store.jobs.get(lost.job_id)).status is JobStatus.CANCELED
    assert await charged(job_store, "ada") == await charged(job_store, "bob") == pytest.approx(40.0)


async def test_a_job_that_fails_by_its_own_fault_costs_what_was_done(
    job_store: JobStore, clock: FakeClock
) -> None:
    lease = await started(job_store)
    clock.advance(100.0)
    await tell(job_store, lease, 10, Phase.FILTER)
    assert await end(job_store, lease, 0.0, "output_blocked") == JobStatus.FAILED
    assert await charged(job_store) == pytest.approx(100.0)


async def test_a_job_that_is_stopped_at_its_timeout_costs_the_time_that_it_had(
    job_store: JobStore, clock: FakeClock
) -> None:
    """The timeout itself may be shorter than the time until anybody looks."""
    lease = await started(job_store, timeout=0.1)
    await Time(job_store, clock, step=1.5).pass_by(1.5)
    assert (await job_store.jobs.get(lease.job_id)).status is JobStatus.FAILED
    assert await charged(job_store) == pytest.approx(1.5)


async def test_an_outage_is_no_time_that_a_job_had(job_store: JobStore, clock: FakeClock) -> None:
    await job_store.housekeeping.reap("a")
    lease = await started(job_store, timeout=20.0)
    clock.advance(5_000.0)
    await job_store.housekeeping.reap("a")
    await Time(job_store, clock, step=1.0).pass_by(25.0)
    assert (await job_store.jobs.get(lease.job_id)).status is JobStatus.FAILED
    assert 20.0 <= await charged(job_store) <= 30.0


@pytest.mark.parametrize("cause", list(ReleaseCause))
async def test_an_attempt_that_others_ended_costs_nothing(
    job_store: JobStore, clock: FakeClock, cause: ReleaseCause
) -> None:
    lease = await started(job_store)
    clock.advance(50.0)
    await tell(job_store, lease, 5)
    assert await release(job_store, lease, cause) == JobStatus.QUEUED
    assert await charged(job_store) == pytest.approx(0.0)


async def test_what_a_checkpoint_keeps_is_charged_once(job_store: JobStore, clock: FakeClock) -> None:
    """The worker that does the rest reports all of it, and what was lost between is nobody's."""
    worker = await add_worker(job_store)
    lease = await started(job_store, worker)
    clock.advance(50.0)
    await put_down(job_store, lease, 40.0)
    assert await charged(job_store) == pytest.approx(40.0), "it is no loan"
    again = await claim_one(job_store, worker)
    assert await charged(job_store) == pytest.approx(100.0), "the rest is predicted"
    clock.advance(20.0)
    await release(job_store, again, ReleaseCause.WORKER_LOST)
    assert await charged(job_store) == pytest.approx(40.0)
    last = await claim_one(job_store, worker)
    clock.advance(55.0)
    await complete(job_store, last, seconds=95.0)
    assert await charged(job_store) == pytest.approx(95.0)
    (used,) = (
        await job_store.usage.read(UsageQuery(group_by=(UsageField.TENANT_ID,)), is_operator=True)
    ).data
    assert used.seconds == pytest.approx(95.0)


@pytest.mark.parametrize(
    ("reported", "cost"),
    [
        pytest.param(None, 40.0, id="in-the-queue"),
        pytest.param(48.0, 48.0, id="while-it-goes-on"),
        pytest.param(0.0, 40.0, id="before-its-engine-has-it"),
    ],
)
async def test_what_a_checkpoint_keeps_of_a_canceled_job_stays_charged(
    job_store: JobStore, clock: FakeClock, reported: float | None, cost: float
) -> None:
    worker = await add_worker(job_store)
    lease = await started(job_store, worker)
    clock.advance(50.0)
    await put_down(job_store, lease, 40.0)
    again = None if reported is None else await claim_one(job_store, worker)
    clock.advance(10.0)
    await job_store.jobs.cancel(lease.job_id)
    if again is not None:
        await end(job_store, again, reported)
    assert await charged(job_store) == pytest.approx(cost)
    used = await job_store.usage.read(UsageQuery(group_by=(UsageField.TENANT_ID,)), is_operator=True)
    assert used.data[0].seconds == pytest.approx(cost)


async def test_what_a_checkpoint_kept_that_is_lost_is_nobodys(job_store: JobStore, clock: FakeClock) -> None:
    worker = await add_worker(job_store)
    lease = await started(job_store, worker)
    clock.advance(50.0)
    await put_down(job_store, lease, 40.0)
    again = await claim_one(job_store, worker)
    error = JobError("download_failed", "…", retryable=True)
    failure = Failure(lease_token=again.lease_token, error=error, actual_seconds=0.0)
    await job_store.leases.fail(again.job_id, failure)
    clock.advance(100.0)
    last = await claim_one(job_store, worker)
    clock.advance(100.0)
    await complete(job_store, last, seconds=95.0)
    assert await charged(job_store) == pytest.approx(95.0)
    used = await job_store.usage.read(UsageQuery(group_by=(UsageField.TENANT_ID,)), is_operator=True)
    assert used.data[0].seconds == pytest.approx(95.0)


@pytest.mark.parametrize("how", ["complete", "hand_over", "fail", "release"])
async def test_no_attempt_costs_more_than_can_have_passed(
    job_store: JobStore, clock: FakeClock, how: str
) -> None:
    role = WorkerRole.DENOISE if how == "hand_over" else WorkerRole.ALL
    lease = await started(job_store, await add_worker(job_store, role=role))
    clock.advance(30.0)
    match how:
        case "complete":
            done = Completion(lease_token=lease.lease_token, result=JobResult(), actual_seconds=1e300)
            for _ in range(2):
                await job_store.leases.complete(lease.job_id, done)
        case "hand_over":
            await hand_over(job_store, lease, 1e300)
        case "fail":
            await end(job_store, lease, 1e300)
        case _:
            await put_down(job_store, lease, 1e300)
    assert await charged(job_store) == pytest.approx(30.0 + SLACK_SECONDS)
    used = await job_store.usage.read(UsageQuery(group_by=(UsageField.TENANT_ID,)), is_operator=True)
    assert used.data[0].seconds <= 30.0 + SLACK_SECONDS


async def test_no_attempt_costs_more_than_can_have_passed_by_a_clock_that_was_set_back(
    job_store: JobStore, clock: FakeClock
) -> None:
    lease = await started(job_store)
    await job_store.housekeeping.reap("a")
    clock.advance(-1_000.0)
    await job_store.housekeeping.reap("a")
    clock.advance(30.0)
    await complete(job_store, lease, seconds=29.0)
    assert await charged(job_store) == pytest.approx(29.0)
    assert math.isfinite(await charged(job_store))


async def test_virtual_times_that_begin_anew_forget_all_but_what_runs(
    job_store: JobStore, clock: FakeClock
) -> None:
    """Jobs that run meanwhile are charged as ever, and nobody is owed anything for what was before."""
    worker = await add_worker(job_store)
    first = await started(job_store, worker)
    clock.advance(100.0)
    await complete(job_store, first, seconds=100.0)
    running = await started(job_store, worker)
    clock.advance(30.0)
    assert await job_store.virtual_times.reset() == 1
    assert await charged(job_store) == pytest.approx(100.0)
    await complete(job_store, running, seconds=30.0)
    (ada,) = await job_store.virtual_times.read()
    assert (ada.tenant_id, ada.num_queued, ada.num_running) == ("ada", 0, 0)
    assert ada.vtime * ada.weight == pytest.approx(30.0)
