"""Claims: as much as fits, repeated until there is a response, and cut when the engine dies."""

import asyncio
from pathlib import Path

from diffuserve.domain.errors import ServerUnavailable, WorkerNotFound
from diffuserve.domain.jobs.claim import EnginePlace
from diffuserve.domain.jobs.job import Band
from diffuserve.domain.workers.worker import ReleaseCause
from diffuserve.protocol.messages import AddJob, JobFinished
from diffuserve.telemetry.memory import Memory
from support.virtual_time import in_virtual_time
from support.waiting import eventually
from support.worker_fakes import TOKEN_BUDGET, engine_of, make_lease, running_agent


@in_virtual_time
async def test_a_claim_asks_for_what_the_engine_has_room_for(tmp_path: Path) -> None:
    async with running_agent(tmp_path, max_jobs=4) as worker:
        (claim,) = worker.plane.claims
        assert (claim.num_jobs, claim.num_tokens, claim.models) == (4, 2 * TOKEN_BUDGET, ("m",))
        await worker.take(make_lease("j1", step_tokens=300), make_lease("j2", step_tokens=500))
        await eventually(lambda: len(worker.plane.claims) == 2)
        second = worker.plane.claims[1]
        assert (second.num_jobs, second.num_tokens) == (2, 2 * TOKEN_BUDGET - 800)
        assert second.claim_id != claim.claim_id


@in_virtual_time
async def test_a_full_engine_makes_no_claim_until_a_job_leaves_it(tmp_path: Path) -> None:
    async with running_agent(tmp_path, max_jobs=1) as worker:
        engine = await worker.take(make_lease())
        await asyncio.sleep(3_600)
        assert len(worker.plane.claims) == 1
        engine.say(JobFinished(attempt="j1-1"))
        await eventually(lambda: len(worker.plane.claims) == 2)


@in_virtual_time
async def test_an_engine_full_of_large_jobs_wants_those_that_go_before_them_until_one_ends(
    tmp_path: Path,
) -> None:
    async with running_agent(tmp_path) as worker:
        engine = await worker.take(*(make_lease(name, step_tokens=9_000) for name in ("j1", "j2")))
        await eventually(lambda: len(worker.plane.claims) == 2)
        second = worker.plane.claims[1]
        place = EnginePlace(band=Band.STANDARD, step_tokens=9_000)
        assert (second.num_jobs, second.ahead_of) == (1, {"m": place})
        engine.say(JobFinished(attempt="j1-1"))
        await eventually(lambda: len(worker.plane.claims) == 3)
        assert (worker.plane.claims[2].ahead_of, worker.plane.claims[2].claim_id) == ({}, second.claim_id)


@in_virtual_time
async def test_short_memory_makes_no_claim_until_it_is_free(tmp_path: Path) -> None:
    async with running_agent(tmp_path, is_ready=False) as worker:
        worker.memory[0] = Memory(99, 100)
        engine = await worker.engines.next()
        engine.become_ready()
        await eventually(lambda: len(worker.plane.heartbeats) == 3)
        assert worker.plane.claims == []
        worker.memory[0] = Memory(50, 100)
        engine.beat()
        await eventually(lambda: len(worker.plane.claims) == 1)


@in_virtual_time
async def test_memory_of_a_device_counts_instead_of_the_machines(tmp_path: Path) -> None:
    async with running_agent(tmp_path, max_jobs=1) as worker:
        engine = await worker.take(make_lease())
        engine.beat(memory_bytes=99, memory_limit_bytes=100)
        engine.say(JobFinished(attempt="j1-1"))
        await eventually(lambda: bool(worker.plane.completions))
        await asyncio.sleep(3_600)
        assert len(worker.plane.claims) == 1


@in_virtual_time
async def test_a_claim_goes_on_after_the_control_plane_was_away(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        worker.plane.leases.put_nowait(ServerUnavailable("away"))
        await eventually(lambda: len(worker.plane.claims) == 2)
        await worker.take(make_lease())


@in_virtual_time
async def test_a_forgotten_worker_registers_again_and_repeats_its_claim(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        worker.plane.leases.put_nowait(WorkerNotFound("w1"))
        await eventually(lambda: len(worker.plane.claims) == 2)
        assert len(worker.plane.registrations) == 2
        assert worker.plane.claims[0] == worker.plane.claims[1], "with the same id"


@in_virtual_time
async def test_a_claim_is_cut_when_the_engine_dies(tmp_path: Path) -> None:
    """The jobs that the engine held must not be claimed again at once."""
    async with running_agent(tmp_path) as worker:
        worker.engines.started[0].die(-11)
        second = await worker.engines.next(2)
        assert len(worker.plane.claims) == 1
        assert worker.plane.leases.empty()
        second.become_ready()
        await eventually(lambda: len(worker.plane.claims) == 2)
        assert worker.plane.claims[0].claim_id == worker.plane.claims[1].claim_id


@in_virtual_time
async def test_a_lease_that_arrives_without_an_engine_is_released(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        engine_of(worker.agent).token_budget = None  # as while an engine loads
        worker.plane.leases.put_nowait([make_lease()])
        await eventually(lambda: bool(worker.plane.releases))
        ((job_id, release),) = worker.plane.releases
        assert (job_id, release.cause, release.is_suspect) == ("j1", ReleaseCause.DRAIN, False)
        assert not worker.agent.held


@in_virtual_time
async def test_a_job_reaches_the_engine_as_it_was_leased(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        lease = make_lease(is_suspect=True, num_previews=2, output_format="webp")
        engine = await worker.take(lease)
        (added,) = engine.sent_of(AddJob)
        assert added == AddJob(
            attempt="j1-1",
            input=lease.input,
            folder=str(tmp_path / "j1-1"),
            priority=-lease.band.rank,
            is_alone=True,
            num_previews=2,
            output_format="webp",
            log_names={"job_id": "j1"},
        )


@in_virtual_time
async def test_a_job_that_is_leased_again_replaces_its_earlier_lease(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        await worker.take(make_lease(lease_token=1))
        engine = await worker.take(make_lease(lease_token=2))
        assert worker.agent.held["j1"].lease.lease_token == 2
        engine.say(JobFinished(attempt="j1-1"))
        engine.say(JobFinished(attempt="j1-2"))
        await eventually(lambda: bool(worker.plane.completions))
        ((_, completion),) = worker.plane.completions
        assert completion.lease_token == 2
        assert engine.dropped == ["j1-1"], "the files of the lost lease are deleted"
