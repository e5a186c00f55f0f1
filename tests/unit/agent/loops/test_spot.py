"""A worker whose machine is taken away hands everything back in time, whatever hangs."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diffuserve.agent.spot.base import Notice, NoticeKind
from diffuserve.agent.spot.machine import Machine
from diffuserve.domain.errors import ServerUnavailable
from diffuserve.domain.workers.worker import ReleaseCause, WorkerState
from diffuserve.protocol.messages import AbortJob, CheckpointReady, JobFinished, PreemptJob, StepProgress
from support.virtual_time import in_virtual_time, now
from support.waiting import eventually
from support.worker_fakes import (
    AgentUnderTest,
    FakeEngine,
    FakeNotices,
    make_lease,
    running_agent,
)

LONG: dict[str, Any] = {"cost_seconds": 600.0}
HINT = Notice(kind=NoticeKind.REBALANCE, details="at noon")
NOTICE_SECONDS = 25.0


def spot_machine() -> Machine:
    return Machine(is_spot=True, notices=FakeNotices())


def notices_of(machine: Machine) -> FakeNotices:
    assert isinstance(machine.notices, FakeNotices)
    return machine.notices


async def begun(worker: AgentUnderTest) -> FakeEngine:
    """Have the engine do a step of a long job, `j1`, beside a short one, `j2`."""
    engine = await worker.take(make_lease("j1", **LONG), make_lease("j2"))
    for job_id in ("j1", "j2"):
        engine.say(StepProgress(attempt=f"{job_id}-1", phase="denoise", step=1, total=9))
    await eventually(lambda: all(job.step for job in worker.agent.held.values()))
    return engine


async def stops(engine: FakeEngine, after_seconds: float) -> None:
    """Give the last checkpoint of `j1` so long after it is asked for."""
    await eventually(lambda: bool(engine.sent_of(PreemptJob)))
    await asyncio.sleep(after_seconds)
    path = engine.job_folder("j1-1") / "checkpoint-4"
    path.write_bytes(b"half a star")
    engine.say(CheckpointReady(attempt="j1-1", path=str(path), step=4, is_last=True))


def causes(worker: AgentUnderTest) -> dict[str, ReleaseCause]:
    return {job_id: release.cause for job_id, release in worker.plane.releases}


@in_virtual_time
async def test_a_spot_worker_registers_as_one(tmp_path: Path) -> None:
    async with running_agent(tmp_path, machine=spot_machine()) as worker:
        assert [registration.is_spot for registration in worker.plane.registrations] == [True]


@in_virtual_time
async def test_an_interrupted_worker_hands_its_jobs_back_with_what_is_done_of_them(tmp_path: Path) -> None:
    machine = spot_machine()
    async with running_agent(tmp_path, machine=machine, drain_seconds=600.0) as worker:
        worker.plane.may_keep.set()
        engine = await begun(worker)
        notices_of(machine).interrupt()
        begin = now()
        await asyncio.gather(stops(engine, 2.0), worker.exit_code)
        assert worker.exit_code.result() == 0
        assert now() - begin <= NOTICE_SECONDS
        assert causes(worker) == {"j1": ReleaseCause.INTERRUPTED, "j2": ReleaseCause.INTERRUPTED}
        assert worker.plane.kept == [("j1", 0, 4)]
        assert [abort.attempt for abort in engine.sent_of(AbortJob)] == ["j2-1"]
        assert worker.plane.deregistered == ["w1"]
        assert worker.agent.metrics.registry.get_sample_value(
            "diffusion_worker_spot_notices_total", {"kind": "interruption"}
        )


@in_virtual_time
async def test_it_claims_no_more_and_says_why(tmp_path: Path) -> None:
    machine = spot_machine()
    async with running_agent(tmp_path, machine=machine) as worker:
        await worker.take(make_lease("j1"))
        num_heartbeats = len(worker.plane.heartbeats)
        notices_of(machine).interrupt()
        await eventually(lambda: len(worker.plane.heartbeats) > num_heartbeats)
        report = worker.plane.heartbeats[-1].report
        assert report.state is WorkerState.DRAINING
        assert report.drain_reason == "interruption notice of azure: not before noon"
        worker.plane.leases.put_nowait([make_lease("j2")])  # the response to a claim under way
        await eventually(lambda: bool(worker.plane.releases))
        assert causes(worker) == {"j2": ReleaseCause.INTERRUPTED}
        num_claims = len(worker.plane.claims)
        await worker.exit_code
        assert len(worker.plane.claims) == num_claims
        assert worker.plane.num_drains == 1


@in_virtual_time
async def test_a_job_that_ends_in_time_is_delivered(tmp_path: Path) -> None:
    machine = spot_machine()
    async with running_agent(tmp_path, machine=machine) as worker:
        engine = await worker.take(make_lease("j1"))
        notices_of(machine).interrupt()
        await eventually(lambda: worker.agent.state is WorkerState.DRAINING)
        engine.say(JobFinished(attempt="j1-1"))
        assert await worker.exit_code == 0
        assert [job_id for job_id, _ in worker.plane.completions] == ["j1"]
        assert worker.plane.releases == []


async def hang(*_arguments: Any, **_options: Any) -> None:
    await asyncio.sleep(3_600.0)


def hang_upload(worker: AgentUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.plane.may_keep.clear()


def hang_drain(worker: AgentUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.plane.may_keep.set()
    monkeypatch.setattr(worker.plane, "drain", hang)


def hang_live_parts(worker: AgentUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.plane.may_keep.set()
    monkeypatch.setattr(worker.agent._reporter.live, "take_back", hang)


@pytest.mark.parametrize("fault", [hang_upload, hang_drain, hang_live_parts])
@pytest.mark.parametrize("step_seconds", [0.0, 8.0])
@in_virtual_time
async def test_jobs_are_handed_back_in_time_whatever_hangs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[AgentUnderTest, pytest.MonkeyPatch], None],
    step_seconds: float,
) -> None:
    machine = spot_machine()
    async with running_agent(tmp_path, machine=machine) as worker:
        engine = await begun(worker)
        fault(worker, monkeypatch)
        notices_of(machine).interrupt()
        begin = now()
        giving = asyncio.create_task(stops(engine, step_seconds))
        await eventually(lambda: len(worker.plane.releases) == 2)
        assert now() - begin <= NOTICE_SECONDS
        assert set(causes(worker).values()) == {ReleaseCause.INTERRUPTED}
        assert await worker.exit_code == 0
        assert now() - begin <= NOTICE_SECONDS + 2.0
        await giving


@in_virtual_time
async def test_an_engine_that_never_puts_down_and_a_release_that_hangs_do_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = spot_machine()
    async with running_agent(tmp_path, machine=machine) as worker:
        await begun(worker)
        monkeypatch.setattr(worker.plane, "release", hang)
        notices_of(machine).interrupt()
        begin = now()
        assert await worker.exit_code == 0
        assert now() - begin <= NOTICE_SECONDS + 2.0


@in_virtual_time
async def test_a_shorter_notice_leaves_the_times_to_put_down_and_to_report(tmp_path: Path) -> None:
    machine = spot_machine()
    async with running_agent(tmp_path, machine=machine, notice_seconds=15.0) as worker:
        engine = await begun(worker)
        notices_of(machine).interrupt()
        begin = now()
        await eventually(lambda: bool(engine.sent_of(PreemptJob)))
        assert now() - begin <= 2.0, "there is no time to finish anything"
        await worker.exit_code
        assert now() - begin <= 15.0
        assert set(causes(worker)) == {"j1", "j2"}


@in_virtual_time
async def test_a_notice_hurries_a_drain_that_has_begun_and_a_drain_delays_no_notice(tmp_path: Path) -> None:
    machine = spot_machine()
    async with running_agent(tmp_path, machine=machine, drain_seconds=600.0) as worker:
        await begun(worker)
        worker.agent.drain()
        await asyncio.sleep(60.0)
        assert worker.plane.releases == []
        notices_of(machine).interrupt()
        begin = now()
        await eventually(lambda: len(worker.plane.heartbeats[-1].report.drain_reason) > 20)
        worker.agent.drain()  # the SIGTERM that follows a notice
        await worker.exit_code
        assert now() - begin <= NOTICE_SECONDS + 2.0
        assert set(causes(worker).values()) == {ReleaseCause.INTERRUPTED}


@in_virtual_time
async def test_an_end_that_is_near_already_is_not_put_off_by_a_notice(tmp_path: Path) -> None:
    machine = spot_machine()
    async with running_agent(tmp_path, machine=machine, drain_seconds=0.0) as worker:
        await begun(worker)
        begin = now()
        worker.agent.drain()
        await asyncio.sleep(9.0)
        notices_of(machine).interrupt()
        await worker.exit_code
        assert now() - begin <= 21.0


class TestRebalance:
    """A hint that a machine may be taken away some time."""

    @in_virtual_time
    async def test_it_drains_at_leisure(self, tmp_path: Path) -> None:
        machine = spot_machine()
        async with running_agent(tmp_path, machine=machine, drain_seconds=100.0) as worker:
            engine = await begun(worker)
            notices_of(machine).standing = HINT
            await eventually(lambda: worker.agent.state is WorkerState.DRAINING)
            begin = now()
            await asyncio.sleep(90.0)
            engine.say(JobFinished(attempt="j2-1"))
            await worker.exit_code
            assert now() - begin > 100.0
            assert [job_id for job_id, _ in worker.plane.completions] == ["j2"]
            assert causes(worker) == {"j1": ReleaseCause.DRAIN}
            assert "rebalance notice of azure: at noon" in {
                heartbeat.report.drain_reason for heartbeat in worker.plane.heartbeats
            }

    @in_virtual_time
    async def test_one_that_stands_when_the_worker_starts_is_not_heeded_but_the_notice_is(
        self, tmp_path: Path
    ) -> None:
        machine = spot_machine()
        notices_of(machine).standing = HINT
        async with running_agent(tmp_path, machine=machine) as worker:
            await asyncio.sleep(600.0)
            assert worker.agent.state is WorkerState.READY
            notices_of(machine).interrupt()
            assert await worker.exit_code == 0

    @in_virtual_time
    async def test_a_notice_hurries_it(self, tmp_path: Path) -> None:
        machine = spot_machine()
        async with running_agent(tmp_path, machine=machine, drain_seconds=600.0) as worker:
            await begun(worker)
            notices_of(machine).standing = HINT
            await eventually(lambda: worker.agent.state is WorkerState.DRAINING)
            notices_of(machine).interrupt()
            begin = now()
            await worker.exit_code
            assert now() - begin <= NOTICE_SECONDS + 2.0
            assert set(causes(worker).values()) == {ReleaseCause.INTERRUPTED}


class TestTheService:
    """Faults of the metadata service, and the answer to it."""

    @in_virtual_time
    async def test_looks_go_on_after_faults_which_are_logged_now_and_then(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        machine = spot_machine()
        notices = notices_of(machine)
        notices.outcomes.extend([ServerUnavailable("it is away")] * 100)
        async with running_agent(tmp_path, machine=machine) as worker:
            await eventually(lambda: not notices.outcomes)
            assert {
                round(later - earlier, 3)
                for earlier, later in zip(notices.looks, notices.looks[1:], strict=False)
            } == {1.0}
            lines = [record for record in caplog.records if "it is away" in record.message]
            assert 1 <= len(lines) < 10
            assert worker.agent.state is WorkerState.READY
            notices.interrupt()
            assert await worker.exit_code == 0

    @in_virtual_time
    async def test_the_end_is_acknowledged_once_everything_is_handed_back(self, tmp_path: Path) -> None:
        machine = spot_machine()
        notices = notices_of(machine)
        async with running_agent(tmp_path, machine=machine) as worker:
            await begun(worker)
            notices.interrupt()
            await eventually(lambda: len(worker.plane.releases) == 2)
            assert notices.acknowledged == [] or worker.plane.deregistered
            await worker.exit_code
            assert [notice.event_id for notice in notices.acknowledged] == ["e1"]
            assert notices.is_closed

    @pytest.mark.parametrize("neighbor", [{"shares_machine": True}, {"parent_fd": 9}])
    @in_virtual_time
    async def test_a_worker_with_neighbors_does_not_end_their_machine(
        self, tmp_path: Path, neighbor: dict[str, Any]
    ) -> None:
        machine = spot_machine()
        async with running_agent(tmp_path, machine=machine, **neighbor) as worker:
            notices_of(machine).interrupt()
            await worker.exit_code
            assert notices_of(machine).acknowledged == []

    @in_virtual_time
    async def test_an_acknowledgement_that_hangs_does_not_hold_up_the_end(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        machine = spot_machine()
        notices_of(machine).may_acknowledge = False
        caplog.set_level(logging.WARNING)
        async with running_agent(tmp_path, machine=machine) as worker:
            notices_of(machine).interrupt()
            begin = now()
            assert await worker.exit_code == 0
            assert now() - begin < 10.0
        assert "is not acknowledged" in caplog.text

    @in_virtual_time
    async def test_an_ordinary_drain_acknowledges_nothing(self, tmp_path: Path) -> None:
        machine = spot_machine()
        async with running_agent(tmp_path, machine=machine) as worker:
            worker.agent.drain()
            await worker.exit_code
            assert notices_of(machine).acknowledged == []
