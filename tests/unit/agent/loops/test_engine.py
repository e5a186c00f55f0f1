"""An agent outlives its engines, and ends with one that cannot be kept running."""

from pathlib import Path

import pytest

from diffuserve.domain.errors import Forbidden
from diffuserve.domain.workers.worker import ReleaseCause, WorkerState
from diffuserve.protocol.messages import EngineRefused, JobFinished
from support.virtual_time import in_virtual_time, now
from support.waiting import eventually
from support.worker_fakes import make_lease, running_agent


@in_virtual_time
async def test_jobs_of_a_dead_engine_are_released_and_the_next_engine_claims(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        first = await worker.take(make_lease("j1"), make_lease("j2"))
        first.die(-9)
        await eventually(lambda: len(worker.plane.releases) == 2)
        assert {release.cause for _, release in worker.plane.releases} == {ReleaseCause.WORKER_LOST}
        assert not any(release.is_suspect for _, release in worker.plane.releases)
        (await worker.engines.next(2)).become_ready()
        await worker.take(make_lease("j3"))


@in_virtual_time
async def test_only_jobs_in_the_crash_record_are_suspects(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        engine = await worker.take(make_lease("j1"), make_lease("j2"))
        engine.die(-11, attempts=["j2-1"])
        await eventually(lambda: len(worker.plane.releases) == 2)
        released = {job_id: (release.cause, release.is_suspect) for job_id, release in worker.plane.releases}
        assert released == {
            "j1": (ReleaseCause.BYSTANDER, False),
            "j2": (ReleaseCause.WORKER_LOST, True),
        }


@in_virtual_time
async def test_a_job_that_had_left_the_engine_is_completed_after_its_death(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        engine = await worker.take(make_lease())
        engine.say(JobFinished(attempt="j1-1"))
        engine.die(-9)
        await eventually(lambda: bool(worker.plane.completions))
        assert worker.plane.releases == []


@in_virtual_time
async def test_an_engine_that_dies_too_often_ends_the_agent_after_its_reports(tmp_path: Path) -> None:
    async with running_agent(tmp_path, engine_restarts=0) as worker:
        engine = await worker.take(make_lease())
        engine.die(-9)
        assert await worker.exit_code == 1
        assert [job_id for job_id, _ in worker.plane.releases] == ["j1"]


@in_virtual_time
async def test_an_engine_that_exits_before_it_was_ready_ends_the_agent(tmp_path: Path) -> None:
    async with running_agent(tmp_path, is_ready=False) as worker:
        (await worker.engines.next()).die(3)
        assert await worker.exit_code == 2
        assert len(worker.engines.started) == 1


@in_virtual_time
async def test_an_engine_that_refuses_ends_the_agent_with_its_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_agent(tmp_path, is_ready=False) as worker:
        engine = await worker.engines.next()
        engine.say(EngineRefused(reason="no room for the model"))
        engine.die(-6)
        assert await worker.exit_code == 2
        assert "the engine cannot start: no room for the model" in caplog.text


@in_virtual_time
async def test_a_refused_registration_ends_the_agent(tmp_path: Path) -> None:
    async with running_agent(tmp_path, is_ready=False) as worker:
        worker.plane.registration_outcomes.append(Forbidden("not a worker's key"))
        (await worker.engines.next()).become_ready()
        assert await worker.exit_code == 2


@in_virtual_time
async def test_an_engine_that_makes_no_progress_is_killed_and_its_jobs_go_back(tmp_path: Path) -> None:
    async with running_agent(tmp_path, stall_seconds=60.0, silence_seconds=1e6) as worker:
        engine = await worker.take(make_lease())
        start = now()
        await eventually(lambda: engine.was_killed)
        assert now() - start == pytest.approx(60.0, abs=2.0)
        await eventually(lambda: bool(worker.plane.releases))
        states = [heartbeat.report.state for heartbeat in worker.plane.heartbeats]
        assert WorkerState.STALLED in states, "reported at once, before the engine is dead"


@in_virtual_time
async def test_an_engine_without_heartbeats_is_killed_even_when_idle(tmp_path: Path) -> None:
    async with running_agent(tmp_path, silence_seconds=10.0) as worker:
        engine = worker.engines.started[0]
        await eventually(lambda: engine.was_killed)
        (await worker.engines.next(2)).become_ready()
        await eventually(lambda: worker.agent.state is WorkerState.READY)


@in_virtual_time
async def test_a_metric_counts_engines_that_died(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        worker.engines.started[0].die(-9)
        await worker.engines.next(2)
        registry = worker.agent.metrics.registry
        assert registry.get_sample_value("diffusion_worker_engine_restarts_total") == 1.0
