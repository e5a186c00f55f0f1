"""A drain finishes what fits, hands back the rest, and ends the agent."""

import asyncio
from pathlib import Path

import pytest

from diffuserve.domain.errors import ServerUnavailable
from diffuserve.domain.workers.worker import ReleaseCause, WorkerState
from diffuserve.protocol.messages import AbortJob, JobFinished
from support.virtual_time import in_virtual_time, now
from support.waiting import eventually
from support.worker_fakes import make_lease, running_agent


@in_virtual_time
async def test_an_idle_worker_drains_at_once(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        worker.agent.drain()
        assert await worker.exit_code == 0
        assert worker.plane.num_drains == 1
        assert worker.plane.is_closed
        assert worker.engines.started[0].was_stopped, "so that it saves its cost fit"
        assert worker.plane.deregistered == ["w1"]


@in_virtual_time
async def test_a_drain_waits_for_jobs_that_finish_in_time(tmp_path: Path) -> None:
    async with running_agent(tmp_path, drain_seconds=60.0) as worker:
        engine = await worker.take(make_lease())
        worker.agent.drain()
        await eventually(lambda: worker.plane.num_drains == 1)
        assert worker.agent.state is WorkerState.DRAINING
        engine.say(JobFinished(attempt="j1-1"))
        assert await worker.exit_code == 0
        assert [job_id for job_id, _ in worker.plane.completions] == ["j1"]
        assert worker.plane.releases == []


@in_virtual_time
async def test_a_drain_hands_back_jobs_that_take_too_long(tmp_path: Path) -> None:
    async with running_agent(tmp_path, drain_seconds=60.0) as worker:
        engine = await worker.take(make_lease("j1"), make_lease("j2"))
        start = now()
        worker.agent.drain()
        assert await worker.exit_code == 0
        assert now() - start == pytest.approx(60.0, abs=0.5)
        assert {(job_id, release.cause) for job_id, release in worker.plane.releases} == {
            ("j1", ReleaseCause.DRAIN),
            ("j2", ReleaseCause.DRAIN),
        }
        assert {abort.attempt for abort in engine.sent_of(AbortJob)} == {"j1-1", "j2-1"}


@in_virtual_time
async def test_a_draining_worker_claims_no_more(tmp_path: Path) -> None:
    async with running_agent(tmp_path, drain_seconds=60.0) as worker:
        await worker.take(make_lease("j1"))
        worker.agent.drain()
        worker.plane.leases.put_nowait([make_lease("j2")])  # the response to a claim under way
        await eventually(lambda: bool(worker.plane.releases))
        assert [job_id for job_id, _ in worker.plane.releases] == ["j2"]
        num_claims = len(worker.plane.claims)
        await worker.exit_code
        assert len(worker.plane.claims) == num_claims


@in_virtual_time
async def test_a_drain_before_registration_is_not_announced(tmp_path: Path) -> None:
    async with running_agent(tmp_path, is_ready=False) as worker:
        await worker.engines.next()
        worker.agent.drain()
        assert await worker.exit_code == 0
        assert worker.plane.num_drains == 0
        assert worker.plane.deregistered == []


@in_virtual_time
async def test_a_drain_ends_while_the_control_plane_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_worker_id: str) -> None:
        raise ServerUnavailable("away")

    async with running_agent(tmp_path) as worker:
        monkeypatch.setattr(worker.plane, "drain", fail)
        monkeypatch.setattr(worker.plane, "deregister", fail)
        worker.agent.drain()
        assert await worker.exit_code == 0


@in_virtual_time
async def test_a_worker_that_has_left_does_not_register_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat may be under way while the worker leaves, and be told that nobody knows it."""
    async with running_agent(tmp_path) as worker:
        deregister = worker.plane.deregister

        async def slow_deregister(worker_id: str) -> None:
            await deregister(worker_id)
            await worker.agent._membership.renew(worker_id)

        monkeypatch.setattr(worker.plane, "deregister", slow_deregister)
        worker.agent.drain()
        assert await worker.exit_code == 0
        assert (worker.plane.deregistered, len(worker.plane.registrations)) == (["w1"], 1)


@in_virtual_time
async def test_a_control_plane_that_hangs_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(_worker_id: str) -> None:
        await asyncio.sleep(3_600)

    async with running_agent(tmp_path) as worker:
        monkeypatch.setattr(worker.plane, "deregister", hang)
        start = now()
        worker.agent.drain()
        assert await worker.exit_code == 0
        assert now() - start < 10.0
