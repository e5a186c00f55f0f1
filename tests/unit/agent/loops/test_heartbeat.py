"""Heartbeats: which leases they renew, when they are sent, and what their responses change."""

from dataclasses import replace
from pathlib import Path

import pytest

from diffuserve.agent.exit_codes import CANNOT_START
from diffuserve.agent.state.held_states import HeldState
from diffuserve.domain.errors import Forbidden, ServerUnavailable, Unauthorized, WorkerNotFound
from diffuserve.domain.jobs.job import Phase
from diffuserve.domain.models.cost import CostFit
from diffuserve.domain.workers.worker import ControlCommands, WorkerState
from diffuserve.protocol.messages import AbortJob, JobFinished, StepProgress
from support.virtual_time import in_virtual_time, now
from support.waiting import eventually
from support.worker_fakes import HEARTBEAT_SECONDS, AgentUnderTest, engine_of, make_lease, running_agent


async def next_heartbeat(worker: AgentUnderTest) -> None:
    num_heartbeats = len(worker.plane.heartbeats)
    await eventually(lambda: len(worker.plane.heartbeats) > num_heartbeats)


FIT = CostFit((0.0, 0.0), (1.0, 0.0, 0.0, 0.0), (0.0, 0.0))


@in_virtual_time
async def test_heartbeats_keep_the_interval_that_the_control_plane_asks_for(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        await next_heartbeat(worker)
        start = now()
        await next_heartbeat(worker)
        assert now() - start == pytest.approx(HEARTBEAT_SECONDS, abs=0.1)


@in_virtual_time
async def test_a_worker_may_have_an_interval_of_its_own(tmp_path: Path) -> None:
    async with running_agent(tmp_path, heartbeat_seconds=2.0) as worker:
        await next_heartbeat(worker)
        start = now()
        await next_heartbeat(worker)
        assert now() - start == pytest.approx(2.0, abs=0.1)


@in_virtual_time
async def test_a_heartbeat_renews_held_leases_with_their_progress(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        engine = await worker.take(make_lease())
        engine.say(StepProgress(attempt="j1-1", phase="denoise", step=3, total=8))
        await next_heartbeat(worker)
        heartbeat = worker.plane.heartbeats[-1]
        (held,) = heartbeat.held
        assert (held.job_id, held.lease_token) == ("j1", 1)
        assert (held.phase, held.step, held.total) == (Phase.DENOISE, 3, 8)
        assert (heartbeat.report.state, heartbeat.report.num_running) == (WorkerState.OCCUPIED, 1)


@in_virtual_time
async def test_a_stalled_engine_lets_its_leases_expire(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        await worker.take(make_lease())
        engine_of(worker.agent).is_stalled = True
        await next_heartbeat(worker)
        heartbeat = worker.plane.heartbeats[-1]
        assert (heartbeat.report.state, heartbeat.held) == (WorkerState.STALLED, ())


@in_virtual_time
async def test_a_job_that_is_being_uploaded_is_renewed_without_an_engine(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        engine = await worker.take(make_lease())
        worker.plane.final_outcomes.append(None)
        worker.agent._state.held["j1"].move_to(HeldState.LEFT)  # as after its last step
        engine.die(-9)
        await next_heartbeat(worker)
        assert [held.job_id for held in worker.plane.heartbeats[-1].held] == ["j1"]


@in_virtual_time
async def test_a_change_to_an_unusual_state_is_reported_at_once(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        await next_heartbeat(worker)
        start = now()
        worker.engines.started[0].die(-9)
        await next_heartbeat(worker)
        assert now() - start < HEARTBEAT_SECONDS / 2
        assert worker.plane.heartbeats[-1].report.state is WorkerState.INITIALIZING


@in_virtual_time
async def test_a_worker_that_becomes_occupied_waits_for_its_regular_heartbeat(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        await next_heartbeat(worker)
        start = now()
        (await worker.take(make_lease())).beat(num_moves=1)
        await next_heartbeat(worker)
        assert now() - start > HEARTBEAT_SECONDS / 2


@in_virtual_time
async def test_a_heartbeat_reports_the_measured_cost_fit(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        worker.engines.started[0].beat(fit=FIT, last_step_seconds=0.5)
        await next_heartbeat(worker)
        heartbeat = worker.plane.heartbeats[-1]
        load_seconds = heartbeat.fits["m"].load_seconds
        assert 0 < load_seconds < 1
        assert heartbeat.fits == {"m": replace(FIT, load_seconds=load_seconds)}
        assert heartbeat.report.last_step_seconds == 0.5


@in_virtual_time
async def test_a_heartbeat_reports_the_mean_batch_since_the_last_one(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        engine = worker.engines.started[0]
        for num_steps, num_request_steps, mean_batch in ((10, 20, 2.0), (14, 40, 5.0), (14, 40, None)):
            engine.beat(num_steps=num_steps, num_request_steps=num_request_steps)
            await next_heartbeat(worker)
            assert worker.plane.heartbeats[-1].report.mean_batch == mean_batch


@in_virtual_time
async def test_a_lost_lease_is_dropped_and_no_outcome_is_reported(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        engine = await worker.take(make_lease())
        worker.plane.heartbeat_outcomes.append(ControlCommands(lost=("j1",)))
        await eventually(lambda: not worker.agent.held)
        assert [abort.attempt for abort in engine.sent_of(AbortJob)] == ["j1-1"]
        engine.say(JobFinished(attempt="j1-1"))
        await next_heartbeat(worker)
        assert (worker.plane.completions, worker.plane.releases) == ([], [])


@in_virtual_time
async def test_a_lost_lease_leaves_a_newer_lease_on_the_same_job(tmp_path: Path) -> None:
    """The job was leased again while the heartbeat was under way."""
    async with running_agent(tmp_path) as worker:
        await worker.take(make_lease(lease_token=1))
        heartbeat = worker.agent._status.heartbeat()
        await worker.take(make_lease(lease_token=2))
        worker.agent._jobs.drop_lost(["j1"], heartbeat)
        assert worker.agent.held["j1"].lease.lease_token == 2


@in_virtual_time
async def test_a_heartbeat_may_ask_for_a_drain(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        worker.plane.heartbeat_outcomes.append(ControlCommands(drain=True))
        assert await worker.exit_code == 0


@in_virtual_time
async def test_a_forgotten_worker_registers_again(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        worker.plane.heartbeat_outcomes.append(WorkerNotFound("w1"))
        await eventually(lambda: len(worker.plane.registrations) == 2)
        await next_heartbeat(worker)


@in_virtual_time
async def test_heartbeats_go_on_while_the_control_plane_is_away(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        await worker.take(make_lease())
        worker.plane.heartbeat_outcomes.extend([ServerUnavailable("away")] * 5)
        await eventually(lambda: not worker.plane.heartbeat_outcomes)
        await next_heartbeat(worker)
        assert [held.job_id for held in worker.plane.heartbeats[-1].held] == ["j1"]


@in_virtual_time
async def test_in_an_outage_heartbeats_keep_their_interval(tmp_path: Path) -> None:
    async with running_agent(tmp_path, heartbeat_seconds=1.0) as worker:
        worker.plane.heartbeat_outcomes.extend([ServerUnavailable("away")] * 20)
        await next_heartbeat(worker)
        start = now()
        await eventually(lambda: not worker.plane.heartbeat_outcomes)
        assert now() - start <= 20.0, "a pause that grew would outlast a short lease"


@in_virtual_time
async def test_a_heartbeat_that_nobody_answers_is_given_up_before_its_leases_end(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        worker.plane.answers_heartbeats.clear()
        await next_heartbeat(worker)
        start = now()
        await next_heartbeat(worker)
        await next_heartbeat(worker)
        assert now() - start == pytest.approx(12.0, abs=0.1), "two fifths of a lease, and no pause"


@pytest.mark.parametrize("refusal", [Unauthorized("no such key"), Forbidden("not a worker's key")])
@in_virtual_time
async def test_a_worker_whose_key_stays_refused_ends_as_one_that_cannot_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, refusal: Unauthorized | Forbidden
) -> None:
    async with running_agent(tmp_path, drain_seconds=600.0) as worker:
        await worker.take(make_lease())
        await next_heartbeat(worker)
        start = now()
        worker.plane.heartbeat_outcomes.extend([refusal] * 100)
        worker.plane.final_outcomes.extend([refusal] * 100)
        worker.plane.commands.put_nowait(refusal)
        worker.plane.leases.put_nowait(refusal)
        assert await worker.exit_code == CANNOT_START
        assert 60.0 <= now() - start < 60.0 + 2 * HEARTBEAT_SECONDS
        assert worker.plane.num_drains == 0
        assert worker.plane.deregistered == []
    told = [record.getMessage() for record in caplog.records if "key" in record.getMessage()]
    begun, ended = (line for line in told if not line.startswith("job"))
    assert "ends in 60 s" in begun
    assert "keys create --role worker" in ended


@in_virtual_time
async def test_a_worker_whose_key_is_replaced_in_time_stays(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        refused = [Unauthorized("no such key")] * 5
        worker.plane.heartbeat_outcomes.extend([*refused, ControlCommands(), *refused, ControlCommands()])
        await eventually(lambda: not worker.plane.heartbeat_outcomes)
        await next_heartbeat(worker)
        assert not worker.exit_code.done()
        assert worker.agent.state is WorkerState.READY
