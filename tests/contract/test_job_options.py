"""Options of jobs: how long they are kept, how often tried, where they run, and what they become."""

from dataclasses import replace
from typing import Any

import pytest

from diffuserve.domain.errors import JobNotFound, LatentsUnusable, QueueFull
from diffuserve.domain.jobs.input_file import NewFile
from diffuserve.domain.jobs.job import Fallback, Job, JobStatus
from diffuserve.domain.jobs.webhook import JOB_EVENTS, DeliveryAttempt, Webhook
from diffuserve.domain.tenant import Plan
from diffuserve.domain.workers.worker import ReleaseCause, WorkerRole
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.policy.webhook_turns import SendLimits
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.store_driver import (
    Time,
    add_worker,
    claim,
    claim_one,
    complete,
    events,
    fail,
    hand_over,
    new_job,
    release,
)

FALLBACK = Fallback(
    model="quick",
    input={"prompt": "a star", "num_inference_steps": 1},
    asked=None,
    cost_seconds=0.5,
    decode_seconds=0.1,
    step_tokens=8,
    latent_bytes=4,
)


async def ended(store: JobStore, worker: str, **values: Any) -> Job:
    """Return a job that has succeeded just now."""
    job = await store.jobs.submit(new_job(**values))
    await complete(store, await claim_one(store, worker))
    return await store.jobs.get(job.id)


async def forgotten(store: JobStore) -> list[str]:
    return await store.housekeeping.forget(await store.housekeeping.find_outdated(100))


async def test_a_job_is_kept_as_long_as_it_says(job_store: JobStore, clock: FakeClock) -> None:
    worker = await add_worker(job_store)
    job = await ended(job_store, worker, retention_seconds=60.0)
    other = await ended(job_store, worker)
    assert job_store.config.kept_until(job) == pytest.approx((job.finished_at or 0) + 60.0)
    clock.advance(59.0)
    assert await forgotten(job_store) == []
    clock.advance(2.0)
    assert await forgotten(job_store) == [job.id]
    with pytest.raises(JobNotFound):
        await job_store.jobs.get(job.id)
    assert await job_store.jobs.events_after(job.id) == []
    assert (await job_store.jobs.get(other.id)).status is JobStatus.SUCCEEDED


async def test_a_job_that_is_not_stored_goes_soon_after_its_first_delivery(
    job_store: JobStore, clock: FakeClock
) -> None:
    worker, config = await add_worker(job_store), job_store.config
    job = await ended(job_store, worker, forget_delivered=True)
    stored = await ended(job_store, worker)
    for _ in range(2):
        for each in (job, stored):
            await job_store.jobs.note_delivered(each.id)
        clock.advance(config.delivered_seconds / 2 + 1.0)
    assert await forgotten(job_store) == [job.id]


async def test_a_job_that_nobody_fetches_goes_too_however_it_ended(
    job_store: JobStore, clock: FakeClock
) -> None:
    worker, seconds = await add_worker(job_store), job_store.config.undelivered_seconds
    canceled = await job_store.jobs.submit(new_job(forget_delivered=True))
    await job_store.jobs.cancel(canceled.id)
    succeeded = await ended(job_store, worker, forget_delivered=True, retention_seconds=10 * seconds)
    sooner = await ended(job_store, worker, forget_delivered=True, retention_seconds=5.0)
    clock.advance(6.0)
    assert await forgotten(job_store) == [sooner.id]
    clock.advance(seconds)
    assert set(await forgotten(job_store)) == {canceled.id, succeeded.id}


async def test_a_webhook_that_was_answered_delivers(job_store: JobStore, clock: FakeClock) -> None:
    worker, config = await add_worker(job_store), job_store.config
    hook = Webhook("https://ada.example/", JOB_EVENTS, "https://api.example")
    job = await ended(job_store, worker, forget_delivered=True, webhook=hook)
    [delivery] = await job_store.webhooks.find_due([], SendLimits(total=5))
    await job_store.webhooks.record(DeliveryAttempt(delivery.id, 500))
    before = (await job_store.jobs.get(job.id)).forget_at
    await job_store.webhooks.record(DeliveryAttempt(delivery.id, 204))
    after = (await job_store.jobs.get(job.id)).forget_at
    assert before == pytest.approx((job.finished_at or 0) + config.undelivered_seconds)
    assert after == pytest.approx((job.finished_at or 0) + config.delivered_seconds)


async def test_its_images_go_with_it_unless_another_job_names_them(
    job_store: JobStore, clock: FakeClock
) -> None:
    worker, plan = await add_worker(job_store), Plan(name="any")
    names = ("own", "shared", "kept")
    files = {
        name: NewFile(
            id=f"file-{index:020x}",
            tenant_id="ada",
            filename=name,
            size_bytes=9,
            width=8,
            height=8,
            sha256=f"{index:064x}",
        )
        for index, name in enumerate(names)
    }
    for file in files.values():
        await job_store.files.add(file, 10_000.0, plan)

    def naming(*used: str) -> dict[str, Any]:
        image = [
            {"id": files[name].id, "sha256": files[name].sha256, "width": 8, "height": 8} for name in used
        ]
        return {"prompt": "a star", "image": image}

    await ended(
        job_store, worker, forget_delivered=True, retention_seconds=5.0, input=naming("own", "shared")
    )
    await ended(job_store, worker, input=naming("shared"))
    await ended(job_store, worker, retention_seconds=5.0, input=naming("kept"))
    clock.advance(6.0)
    assert len(await forgotten(job_store)) == 2
    assert await job_store.housekeeping.forget_files() == [files["own"].id]


async def attempted(store: JobStore, clock: FakeClock, worker: str, *how: str) -> Job:
    """Return a job after attempts that ended in these ways, each as soon as it may begin."""
    job = await store.jobs.submit(new_job(max_attempts=2, cost_seconds=2.0, decode_seconds=1.0))
    for each in how:
        clock.advance(60.0)
        await store.housekeeping.reap("here")
        [lease] = await claim(store, worker)
        if each == "broken":
            await fail(store, lease, retryable=True)
        elif each == "unusable":
            await fail(store, lease, retryable=False, code=LatentsUnusable.code)
        elif each == "denoised":
            await hand_over(store, lease)
        else:
            await release(store, lease, ReleaseCause(each))
    return await store.jobs.get(job.id)


@pytest.mark.parametrize(
    ("how", "status"),
    [
        (("broken",), JobStatus.QUEUED),
        (("broken", "broken"), JobStatus.FAILED),
        (("worker_lost", "broken"), JobStatus.FAILED),
        (("broken", "worker_lost"), JobStatus.FAILED),
        (("drain", "preempted", "broken"), JobStatus.QUEUED),
    ],
)
async def test_attempts_that_fail_are_counted_whatever_the_cause(
    job_store: JobStore, clock: FakeClock, how: tuple[str, ...], status: JobStatus
) -> None:
    job = await attempted(job_store, clock, await add_worker(job_store), *how)
    assert job.status is status
    assert (job.error is None) is (status is JobStatus.QUEUED)


async def test_latents_that_were_lost_are_an_attempt_that_failed(
    job_store: JobStore, clock: FakeClock
) -> None:
    first, second = [
        await add_worker(job_store, role=role) for role in (WorkerRole.DENOISE, WorkerRole.DECODE)
    ]
    job = await attempted(job_store, clock, first, "broken", "denoised")
    [lease] = await claim(job_store, second)
    await fail(job_store, lease, retryable=False, code=LatentsUnusable.code)
    assert (await job_store.jobs.get(job.id)).status is JobStatus.FAILED


async def test_a_job_that_nobody_starts_in_time_says_so(job_store: JobStore, clock: FakeClock) -> None:
    waiting = await job_store.jobs.submit(new_job(expires_in=5.0))
    hurried = await job_store.jobs.submit(new_job(finish_in=5.0))
    await Time(job_store, clock).pass_by(6.0)
    errors = [(await job_store.jobs.get(job.id)).error for job in (waiting, hurried)]
    assert [error and error.code for error in errors] == ["start_timeout", "deadline_missed"]


async def test_a_job_becomes_its_fallback_once(job_store: JobStore, clock: FakeClock) -> None:
    new = new_job(expires_in=5.0, fallback=FALLBACK, decode_seconds=0.5, asked={"width": 9})
    jobs = [await job_store.jobs.submit(new) for _ in range(2)]
    clock.advance(4.0)
    assert await claim(job_store, await add_worker(job_store, "quick")) == []
    clock.advance(2.0)
    worker = await add_worker(job_store, "quick")
    lease = await claim_one(job_store, worker)
    assert (lease.job_id, lease.model, lease.cost_seconds) == (jobs[0].id, "quick", 0.5)
    assert lease.input == FALLBACK.input
    await complete(job_store, lease, seconds=0.4)
    drawn = await job_store.jobs.get(jobs[0].id)
    assert (drawn.requested_model, drawn.fallback, drawn.asked) == ("tiny", None, None)
    assert await events(job_store, drawn) == ["queued", "fell_back", "running", "succeeded"]
    assert await add_worker(job_store)
    clock.advance(5.0)
    await job_store.housekeeping.reap("here")
    assert (await job_store.jobs.get(jobs[1].id)).status is JobStatus.EXPIRED


async def test_a_job_that_has_started_or_has_no_time_left_does_not_fall_back(
    job_store: JobStore, clock: FakeClock
) -> None:
    worker = await add_worker(job_store)
    started = await job_store.jobs.submit(new_job(expires_in=5.0, fallback=FALLBACK))
    await release(job_store, await claim_one(job_store, worker))
    late = await job_store.jobs.submit(new_job(expires_in=5.0, finish_in=5.2, fallback=FALLBACK))
    await Time(job_store, clock).pass_by(6.0)
    statuses = [(await job_store.jobs.get(job.id)).status for job in (started, late)]
    assert statuses == [JobStatus.QUEUED, JobStatus.EXPIRED]


async def test_the_queue_has_room_for_the_more_expensive_of_both(
    database_url: str, clock: FakeClock, job_store: JobStore
) -> None:
    plan = Plan(name="small", max_queued_seconds=5.0)
    config = StoreConfig(plans={"small": plan}, default_plan="small")
    store = JobStore(database_url, MemoryEventBus(), config, clock)
    await store.open()
    await store.jobs.submit(new_job(cost_seconds=2.0))
    with pytest.raises(QueueFull):
        await store.jobs.submit(new_job(cost_seconds=1.0, fallback=replace(FALLBACK, cost_seconds=4.0)))
    await store.close()


async def test_jobs_with_one_hint_share_a_worker_that_is_free(job_store: JobStore, clock: FakeClock) -> None:
    workers = [await add_worker(job_store) for _ in range(3)]
    ran: dict[str, set[str]] = {}
    for index in range(24):  # By chance one worker has them all, once in 3**11.
        await job_store.jobs.submit(new_job(worker_hint=f"h{index % 12}"))
        [(worker, lease)] = [(each, lease) for each in workers for lease in await claim(job_store, each)]
        ran.setdefault(f"h{index % 12}", set()).add(worker)
        await complete(job_store, lease)
    assert all(len(used) == 1 for used in ran.values())
    assert len(set.union(*ran.values())) > 1, "hints are spread"


async def test_a_hint_makes_nobody_wait_long(job_store: JobStore, clock: FakeClock) -> None:
    workers = [await add_worker(job_store) for _ in range(2)]
    job = await job_store.jobs.submit(new_job(worker_hint="session 7"))
    hinted = [await claim(job_store, worker) for worker in workers]
    [away] = [worker for worker, leases in zip(workers, hinted, strict=True) if not leases]
    second = await job_store.jobs.submit(new_job(worker_hint="session 7"))
    assert await claim(job_store, away) == []
    clock.advance(job_store.config.hint_wait_seconds + 0.1)
    assert (await claim_one(job_store, away)).job_id == second.id != job.id
