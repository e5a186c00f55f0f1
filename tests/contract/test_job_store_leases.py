"""Claims, leases, fences and retries."""

from dataclasses import replace

import pytest

from diffuserve.domain.errors import LeaseLost, WorkerNotFound
from diffuserve.domain.jobs.claim import Claim, EnginePlace
from diffuserve.domain.jobs.job import Band, JobStatus
from diffuserve.domain.tenant import PlanOverrides, Role
from diffuserve.domain.workers.peers import PeerAddress, PeerReport
from diffuserve.domain.workers.worker import Heartbeat, Release, ReleaseCause, WorkerState
from diffuserve.events.base import QUEUE, job_topic, worker_topic
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.policy.pricing import NEUTRAL_FIT
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.adapters import digest_of
from support.postgres import PostgresServer
from support.store_driver import (
    REPORT,
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


async def test_jobs_of_a_tenant_are_leased_in_the_order_of_submission(job_store: JobStore) -> None:
    jobs = [await job_store.jobs.submit(new_job()) for _ in range(6)]
    worker = await add_worker(job_store)
    leases = await claim(job_store, worker, num_jobs=4) + await claim(job_store, worker, num_jobs=4)
    assert [lease.job_id for lease in leases] == [job.id for job in jobs]
    assert {lease.lease_token for lease in leases} == {1}


async def test_claim_leases_only_models_that_the_worker_serves(job_store: JobStore) -> None:
    await job_store.jobs.submit(new_job(model="other"))
    mine = await job_store.jobs.submit(new_job(model="tiny"))
    worker = await add_worker(job_store, "tiny", "third")
    assert [lease.job_id for lease in await claim(job_store, worker, num_jobs=5)] == [mine.id]


async def test_a_model_that_its_worker_cannot_load_is_not_served_any_more(job_store: JobStore) -> None:
    worker = await add_worker(job_store, "tiny", "broken")
    report = replace(REPORT, withdrawn_models={"broken": "a truncated file"})
    await job_store.leases.heartbeat(worker, Heartbeat(report=report))
    (known,) = await job_store.operations.workers()
    assert known.models == ("tiny",)
    assert known.report.withdrawn_models == {"broken": "a truncated file"}


async def test_what_a_worker_fetches_with_peers_is_dated_by_its_first_report(
    job_store: JobStore, clock: FakeClock
) -> None:
    worker = await add_worker(job_store, "tiny")
    report = replace(REPORT, peers=(PeerReport(model="0" * 64, address=PeerAddress("10.0.0.1", 7000)),))
    begun, _ = await job_store.operations.workers_at()
    for _ in range(2):
        await job_store.leases.heartbeat(worker, Heartbeat(report=report))
        (known,) = await job_store.operations.workers()
        assert [peer.since for peer in known.report.peers] == [begun]
        clock.advance(7.0)


async def test_an_unknown_worker_must_register(job_store: JobStore) -> None:
    with pytest.raises(WorkerNotFound):
        await claim(job_store, "worker_nobody")
    with pytest.raises(WorkerNotFound):
        await send_heartbeat(job_store, "worker_nobody")


async def test_claim_keeps_within_its_tokens_but_always_grants_a_first_job(job_store: JobStore) -> None:
    for tokens in (500, 40, 40, 40):
        await job_store.jobs.submit(new_job(step_tokens=tokens))
    worker = await add_worker(job_store)
    assert [lease.step_tokens for lease in await claim(job_store, worker, 8, num_tokens=100)] == [500]
    assert [lease.step_tokens for lease in await claim(job_store, worker, 8, num_tokens=100)] == [40, 40]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (EnginePlace(band=Band.STANDARD), ["urgent"]),
        (EnginePlace(band=Band.STANDARD, step_tokens=900), ["urgent", "small"]),
        (EnginePlace(band=Band.BATCH), ["urgent", "small", "large"]),
        (EnginePlace(band=Band.INTERACTIVE), []),
    ],
)
async def test_a_worker_that_is_full_gets_the_jobs_that_go_before_those_it_has(
    job_store: JobStore, place: EnginePlace, expected: list[str]
) -> None:
    worker = await add_worker(job_store)
    jobs = {
        "batch": new_job("bob", band=Band.BATCH, step_tokens=8),
        "large": new_job("mallory", step_tokens=900),
        "small": new_job("sue", step_tokens=80),
        "urgent": new_job("ada", band=Band.INTERACTIVE, step_tokens=900),
    }
    names = {(await job_store.jobs.submit(job)).id: name for name, job in jobs.items()}
    leases = await claim(job_store, worker, num_jobs=4, models=("tiny",), ahead_of={"tiny": place})
    assert sorted(names[lease.job_id] for lease in leases) == sorted(expected)


async def test_a_full_worker_finds_a_small_job_behind_the_large_ones_of_many_tenants(
    job_store: JobStore,
) -> None:
    worker = await add_worker(job_store)
    for number in range(70):
        await job_store.jobs.submit(new_job(f"ada-{number}", step_tokens=900))
    small = await job_store.jobs.submit(new_job("sue", step_tokens=80))
    place = EnginePlace(band=Band.STANDARD, step_tokens=900)
    for expected in ([small.id], []):
        leases = await claim(job_store, worker, num_jobs=1, models=("tiny",), ahead_of={"tiny": place})
        assert [lease.job_id for lease in leases] == expected


@pytest.mark.parametrize(
    ("ahead_of", "worst"),
    [
        ({}, Band.BATCH),
        ({"a": EnginePlace(band=Band.STANDARD)}, Band.BATCH),
        ({name: EnginePlace(band=Band.STANDARD) for name in "ab"}, Band.INTERACTIVE),
        ({name: EnginePlace(band=Band.STANDARD, step_tokens=9) for name in "ab"}, Band.STANDARD),
        ({name: EnginePlace(band=Band.INTERACTIVE) for name in "ab"}, None),
    ],
)
def test_a_claim_names_the_worst_band_that_it_wants(
    ahead_of: dict[str, EnginePlace], worst: Band | None
) -> None:
    assert Claim(claim_id="c", num_jobs=1, models=("a", "b"), ahead_of=ahead_of).worst_band is worst


async def test_work_of_a_band_is_found_without_a_claim(job_store: JobStore) -> None:
    await job_store.jobs.submit(new_job(band=Band.STANDARD))
    found = [await job_store.leases.has_work(band) for band in Band]
    assert dict(zip(Band, found, strict=True)) == {
        Band.INTERACTIVE: False,
        Band.STANDARD: True,
        Band.BATCH: True,
    }


async def test_a_repeated_claim_gets_the_same_leases(job_store: JobStore) -> None:
    for _ in range(4):
        await job_store.jobs.submit(new_job())
    worker = await add_worker(job_store)
    first = await claim(job_store, worker, num_jobs=2, claim_id="lost-response")
    again = await claim(job_store, worker, num_jobs=2, claim_id="lost-response")
    assert again == first
    assert len(await claim(job_store, worker, num_jobs=4, claim_id="next")) == 2


async def test_no_tenant_runs_more_than_its_plan_allows(job_store: JobStore) -> None:
    await job_store.keys.create(Role.TENANT, tenant_id="ada", overrides=PlanOverrides(max_running=2))
    for _ in range(5):
        await job_store.jobs.submit(new_job("ada"))
    worker = await add_worker(job_store)
    leases = await claim(job_store, worker, num_jobs=5)
    assert len(leases) == 2
    assert await claim(job_store, await add_worker(job_store), num_jobs=5) == []
    await complete(job_store, leases[0])
    assert len(await claim(job_store, worker, num_jobs=5)) == 1


async def test_a_better_band_is_served_first_until_a_job_of_a_worse_band_has_aged(
    job_store: JobStore, clock: FakeClock, store_config: StoreConfig
) -> None:
    slow = await job_store.jobs.submit(new_job("ada", band=Band.STANDARD))
    clock.advance(store_config.ageing_seconds + 1)
    batch = await job_store.jobs.submit(new_job("ada", band=Band.BATCH))
    fast = await job_store.jobs.submit(new_job("bob", band=Band.INTERACTIVE))
    worker = await add_worker(job_store)
    order = [lease.job_id for lease in await claim(job_store, worker, num_jobs=3)]
    assert order == [slow.id, fast.id, batch.id], "the standard job has aged into the first band"


async def test_tenants_share_by_weight_in_predicted_seconds(job_store: JobStore) -> None:
    await job_store.keys.create(
        Role.TENANT, tenant_id="ada", overrides=PlanOverrides(weight=1.0, max_running=99)
    )
    await job_store.keys.create(
        Role.TENANT, tenant_id="bob", overrides=PlanOverrides(weight=3, max_running=99)
    )
    for _ in range(40):
        await job_store.jobs.submit(new_job("ada"))
        await job_store.jobs.submit(new_job("bob"))
    leases = await claim(job_store, await add_worker(job_store), num_jobs=40)
    tenants = [(await job_store.jobs.get(lease.job_id)).tenant_id for lease in leases]
    assert tenants.count("bob") == pytest.approx(30, abs=1)


async def test_actual_seconds_replace_the_predicted_charge(job_store: JobStore, clock: FakeClock) -> None:
    worker = await add_worker(job_store)
    for tenant in ("ada", "bob"):
        for _ in range(12):
            await job_store.jobs.submit(new_job(tenant))
    first, second = await claim(job_store, worker, num_jobs=2)
    clock.advance(6.0)
    await complete(job_store, first, seconds=6.0)
    await complete(job_store, second, seconds=1.0)
    heavy = (await job_store.jobs.get(first.job_id)).tenant_id
    leases = await claim(job_store, worker, num_jobs=5)
    tenants = [(await job_store.jobs.get(lease.job_id)).tenant_id for lease in leases]
    assert heavy not in tenants, "it owes five seconds"


async def test_a_tenant_earns_no_credit_while_idle(job_store: JobStore) -> None:
    worker = await add_worker(job_store)
    for _ in range(30):
        await job_store.jobs.submit(new_job("ada"))
    for _ in range(20):
        await complete(job_store, await claim_one(job_store, worker))
    for _ in range(10):
        await job_store.jobs.submit(new_job("late"))
    leases = await claim(job_store, worker, num_jobs=10)
    tenants = [(await job_store.jobs.get(lease.job_id)).tenant_id for lease in leases]
    assert 4 <= tenants.count("late") <= 6


async def test_a_resident_model_is_served_first_within_the_lookahead(
    job_store: JobStore, store_config: StoreConfig
) -> None:
    worker = await add_worker(job_store, "cold", "warm")
    cold = await job_store.jobs.submit(new_job(model="cold"))
    for _ in range(100):
        await job_store.jobs.submit(new_job(model="warm"))
    served = []
    while cold.id not in served:
        (lease,) = await claim(job_store, worker, resident_models=("warm",))
        served.append(lease.job_id)
        await complete(job_store, lease)
    assert 1 < len(served) <= store_config.affinity_lookahead + 1


async def test_a_job_is_left_for_a_moment_to_a_worker_that_has_its_model_in_memory(
    job_store: JobStore, clock: FakeClock, store_config: StoreConfig
) -> None:
    first, second = await add_worker(job_store, "a", "b"), await add_worker(job_store, "a", "b")
    for worker, model in ((first, "a"), (second, "b")):
        report = replace(REPORT, resident_models=(model,))
        await job_store.leases.heartbeat(worker, Heartbeat(report=report))
    jobs = [await job_store.jobs.submit(new_job(model="b")) for _ in range(2)]
    assert not await claim(job_store, first, resident_models=("a",))
    (lease,) = await claim(job_store, second, resident_models=("b",))
    clock.advance(store_config.resident_wait_seconds)
    (late,) = await claim(job_store, first, resident_models=("a",))
    assert [lease.job_id, late.job_id] == [job.id for job in jobs]


async def test_a_job_is_left_for_a_moment_to_a_worker_that_has_its_adapter_in_memory(
    job_store: JobStore, clock: FakeClock, store_config: StoreConfig
) -> None:
    first, second = await add_worker(job_store, "a"), await add_worker(job_store, "a")
    ink, dots = digest_of("ink"), digest_of("dots")
    for worker, adapters in ((first, (dots,)), (second, (ink,))):
        await job_store.leases.heartbeat(
            worker, Heartbeat(report=replace(REPORT, resident_adapters=adapters))
        )
    asked = {"prompt": "a star", "adapters": [{"name": "ink", "weight": 1.0, "digest": ink}]}
    jobs = [await job_store.jobs.submit(replace(new_job(model="a"), input=asked)) for _ in range(2)]
    assert not await claim(job_store, first)
    (lease,) = await claim(job_store, second)
    clock.advance(store_config.resident_wait_seconds)
    (late,) = await claim(job_store, first)
    assert [lease.job_id, late.job_id] == [job.id for job in jobs]


async def test_a_job_whose_model_loads_soon_is_not_passed_over_for_long(
    job_store: JobStore, clock: FakeClock
) -> None:
    worker = await add_worker(job_store, "cold", "warm")
    fit = replace(NEUTRAL_FIT, load_seconds=0.5)
    await job_store.leases.heartbeat(worker, Heartbeat(report=REPORT, fits={"cold": fit, "warm": fit}))
    cold = await job_store.jobs.submit(new_job(model="cold"))
    for _ in range(3):
        await job_store.jobs.submit(new_job(model="warm"))
    (first,) = await claim(job_store, worker, resident_models=("warm",))
    clock.advance(5.1)
    leases = await claim(job_store, worker, num_jobs=4, resident_models=("warm",))
    assert first.model == "warm"
    assert [lease.job_id for lease in leases] == [cold.id], (
        "the rest of a claim is for the model that it loads"
    )


@pytest.mark.parametrize("how", ["complete", "fail", "release"])
async def test_a_stale_token_changes_nothing(job_store: JobStore, clock: FakeClock, how: str) -> None:
    time = Time(job_store, clock)
    worker = await add_worker(job_store)
    job = await job_store.jobs.submit(new_job())
    stale = await claim_one(job_store, worker)
    await time.pass_by(40.0)
    fresh = await claim_one(job_store, await add_worker(job_store))
    assert fresh.lease_token == stale.lease_token + 1
    before = await job_store.jobs.get(job.id)
    reports = {
        "complete": lambda: complete(job_store, stale),
        "fail": lambda: fail(job_store, stale, retryable=False),
        "release": lambda: release(job_store, stale),
    }
    with pytest.raises(LeaseLost):
        await reports[how]()
    with pytest.raises(LeaseLost):
        await job_store.leases.check(job.id, stale.lease_token)
    assert await job_store.jobs.get(job.id) == before
    await complete(job_store, fresh)


async def test_a_repeated_completion_returns_the_same_status(job_store: JobStore) -> None:
    job = await job_store.jobs.submit(new_job())
    lease = await claim_one(job_store, await add_worker(job_store))
    assert await complete(job_store, lease) == JobStatus.SUCCEEDED
    assert await complete(job_store, lease) == JobStatus.SUCCEEDED
    assert (await events(job_store, job)).count("succeeded") == 1


async def test_a_revoked_token_cannot_finish_the_job(
    job_store: JobStore, clock: FakeClock, store_config: StoreConfig
) -> None:
    time = Time(job_store, clock)
    job = await job_store.jobs.submit(new_job(timeout=10.0))
    worker = await add_worker(job_store)
    lease = await claim_one(job_store, worker)
    await time.pass_by(12.0)
    after = await job_store.jobs.get(job.id)
    assert after.status is JobStatus.FAILED
    assert after.error is not None
    assert after.error.code == "timeout"
    with pytest.raises(LeaseLost):
        await complete(job_store, lease)


async def test_heartbeats_renew_the_leases_they_name_and_report_lost_ones(
    job_store: JobStore, clock: FakeClock
) -> None:
    time = Time(job_store, clock)
    kept, dropped = [await job_store.jobs.submit(new_job()) for _ in range(2)]
    worker = await add_worker(job_store)
    leases = {lease.job_id: lease for lease in await claim(job_store, worker, num_jobs=2)}
    for _ in range(5):
        await time.pass_by(10.0)
        await send_heartbeat(job_store, worker, leases[kept.id])
    assert (await job_store.jobs.get(kept.id)).status is JobStatus.RUNNING
    assert (await job_store.jobs.get(dropped.id)).status is JobStatus.QUEUED
    commands = await send_heartbeat(job_store, worker, *leases.values())
    assert commands.lost == (dropped.id,)
    await job_store.jobs.cancel(kept.id)
    assert (await send_heartbeat(job_store, worker, leases[kept.id])).cancel == (kept.id,)


async def test_a_job_whose_lease_expired_is_queued_at_its_old_place(
    job_store: JobStore, clock: FakeClock
) -> None:
    time = Time(job_store, clock)
    requeued: list[str] = []
    expired: list[int] = []
    job_store.on_put_back(requeued.append, expired.append)
    jobs = [await job_store.jobs.submit(new_job(cost_seconds=50.0 if i == 0 else 1.0)) for i in range(3)]
    other = await job_store.jobs.submit(new_job("bob"))
    worker = await add_worker(job_store)
    lease = await claim_one(job_store, worker)
    assert lease.job_id == jobs[0].id
    await time.pass_by(60.0)
    assert (await job_store.jobs.get(jobs[0].id)).status is JobStatus.QUEUED, "within twice the lease"
    assert (requeued, sum(expired)) == ([ReleaseCause.WORKER_LOST], 1)
    order = [lease.job_id for lease in await claim(job_store, await add_worker(job_store), num_jobs=4)]
    assert order.index(jobs[0].id) < order.index(jobs[1].id) < order.index(jobs[2].id)
    assert jobs[0].id in order[:2], "what it was charged was given back"
    assert other.id in order[:2]


async def test_a_job_fails_once_too_many_workers_were_lost(job_store: JobStore, clock: FakeClock) -> None:
    time = Time(job_store, clock)
    job = await job_store.jobs.submit(new_job())
    worker = await add_worker(job_store)
    for _ in range(3):
        await claim_one(job_store, worker)
        await time.pass_by(40.0)
        assert (await job_store.jobs.get(job.id)).status is JobStatus.QUEUED
    lease = await claim_one(job_store, worker)
    assert await release(job_store, lease, ReleaseCause.WORKER_LOST) == JobStatus.FAILED
    after = await job_store.jobs.get(job.id)
    assert after.error is not None
    assert after.error.code == "worker_lost"
    assert after.attempt == 4


async def test_transient_failures_are_retried_after_growing_pauses(
    job_store: JobStore, clock: FakeClock
) -> None:
    time = Time(job_store, clock, step=0.25)
    job = await job_store.jobs.submit(new_job())
    worker = await add_worker(job_store)
    waits = []
    for _ in range(3):
        assert await fail(job_store, await claim_one(job_store, worker), retryable=True) == JobStatus.QUEUED
        assert await claim(job_store, worker) == [], "not at once"
        start = time.clock.now
        while not await job_store.operations.lanes():
            await time.pass_by(0.25)
        waits.append(time.clock.now - start)
    assert waits[0] <= 1.25
    assert 0.5 <= waits[1] <= 2.25
    assert 1.0 <= waits[2] <= 4.25
    assert await fail(job_store, await claim_one(job_store, worker), retryable=True) == JobStatus.FAILED
    after = await job_store.jobs.get(job.id)
    assert after.error is not None
    assert after.error.code == "broken"


async def test_a_failure_that_is_not_retryable_is_not_retried(job_store: JobStore) -> None:
    await job_store.jobs.submit(new_job())
    lease = await claim_one(job_store, await add_worker(job_store))
    assert await fail(job_store, lease, retryable=False) == JobStatus.FAILED


async def test_jobs_released_by_a_drain_lose_no_attempt(job_store: JobStore) -> None:
    job = await job_store.jobs.submit(new_job())
    worker = await add_worker(job_store)
    for _ in range(8):
        assert await release(job_store, await claim_one(job_store, worker)) == JobStatus.QUEUED
    assert await complete(job_store, await claim_one(job_store, worker)) == JobStatus.SUCCEEDED
    assert (await events(job_store, job)).count("requeued") == 8


async def test_a_draining_worker_gets_no_more_jobs(job_store: JobStore) -> None:
    await job_store.jobs.submit(new_job())
    worker = await add_worker(job_store)
    await job_store.leases.drain(worker)
    assert await claim(job_store, worker) == []
    assert (await job_store.leases.control_commands(worker)).drain
    with pytest.raises(WorkerNotFound):
        await job_store.leases.drain("worker_nobody")


async def test_changes_are_published_on_the_event_bus(job_store: JobStore, bus: MemoryEventBus) -> None:
    worker = await add_worker(job_store)
    with bus.subscribe(QUEUE) as queue, bus.subscribe(worker_topic(worker)) as commands:
        job = await job_store.jobs.submit(new_job())
        assert await queue.get(1.0) == {"type": "ready", "urgent": False}
        lease = await claim_one(job_store, worker)
        with bus.subscribe(job_topic(job.id)) as changes:
            await job_store.jobs.cancel(job.id)
            assert await changes.get(1.0) == {"type": "changed", "status": "canceling"}
            assert await commands.get(1.0) == {"type": "cancel", "job_id": job.id}
            await complete(job_store, lease)
            assert await changes.get(1.0) == {"type": "changed", "status": "canceled"}


async def test_registered_workers_and_their_models_are_listed(job_store: JobStore, clock: FakeClock) -> None:
    worker = await add_worker(job_store, "tiny", "other")
    await job_store.jobs.submit(new_job())
    await claim_one(job_store, worker)
    (known,) = await job_store.operations.workers()
    assert (known.id, known.num_leases, known.models) == (worker, 1, ("tiny", "other"))
    assert known.state is WorkerState.READY
    assert set(await job_store.operations.models()) == {"tiny", "other"}
    clock.advance(31.0)
    assert (await job_store.operations.workers())[0].state is WorkerState.LOST


class TestRestart:
    @pytest.fixture
    def database_url(self, postgres: PostgresServer) -> str:
        return postgres.create_database("restarted")

    async def test_the_store_outlives_a_restart_of_postgresql(
        self, job_store: JobStore, postgres: PostgresServer
    ) -> None:
        worker = await add_worker(job_store)
        before = await job_store.jobs.submit(new_job())
        lease = await claim_one(job_store, worker)
        postgres.restart()
        assert await complete(job_store, lease) == JobStatus.SUCCEEDED
        after = await job_store.jobs.submit(new_job())
        assert {job.id for job in await job_store.jobs.list_jobs()} == {before.id, after.id}


async def test_a_suspect_job_stays_suspect(job_store: JobStore) -> None:
    worker = await add_worker(job_store)
    job = await job_store.jobs.submit(new_job())
    lease = await claim_one(job_store, worker)
    assert not lease.is_suspect
    lost = Release(lease_token=lease.lease_token, cause=ReleaseCause.WORKER_LOST, is_suspect=True)
    await job_store.leases.release(job.id, lost)
    second = await claim_one(job_store, worker)
    assert second.is_suspect
    await release(job_store, second, ReleaseCause.DRAIN)
    assert (await claim_one(job_store, worker)).is_suspect
