"""Held jobs make allowed moves alone, whatever happens in any order, and their ends are told once."""

import asyncio
import gc
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from diffuserve.agent.state.held_states import MOVES, HeldState
from diffuserve.domain.jobs.checkpoint import StoredCheckpoint
from diffuserve.protocol.messages import CheckpointReady, FinishedFile, JobFailed, JobFinished, StepProgress
from support.virtual_time import run_in_virtual_time
from support.waiting import eventually
from support.worker_fakes import AgentUnderTest, make_lease, running_agent

LEASED = ("lease", "lease with files")
CONTROLLED = ("cancel", "preempt", "lose")
SAID = ("progress", "finish", "fail", "last checkpoint")
AROUND = ("fetch", "storage", "die")
EVENTS = st.tuples(st.sampled_from((*LEASED * 3, *CONTROLLED, *SAID * 2, *AROUND)), st.integers(0, 2))
"""What happens, and to which job."""


class Play:
    """Has things happen to an agent, and remembers the attempts that it was given and those that it lost."""

    def __init__(self, worker: AgentUnderTest) -> None:
        self.worker, self.jobs = worker, worker.agent._jobs
        self.given: list[str] = []
        self.lost: set[str] = set()

    async def happen(self, event: str, number: int) -> None:
        job_id = f"j{number}"
        if event in LEASED:
            self.lease(job_id, with_files=event != "lease")
        elif event in CONTROLLED:
            self.control(event, job_id)
        elif event in SAID:
            self.say(event, number)
        elif event == "die":
            await self.die(number)
        else:
            plane = self.worker.plane
            switch = plane.may_fetch if event == "fetch" else plane.has_storage
            (switch.clear if switch.is_set() else switch.set)()
        await asyncio.sleep(0.05)

    def lease(self, job_id: str, with_files: bool) -> None:
        """Grant a lease; that of an earlier one of the job, if it is held, is lost by it."""
        self.lose(job_id)
        lease = make_lease(job_id, len(self.given) + 1, cost_seconds=100.0)
        if with_files:
            checkpoint = StoredCheckpoint(lease_token=0, slot=0, step=1, size_bytes=1, sha256="")
            lease = make_lease(job_id, lease.lease_token, cost_seconds=100.0, checkpoint=checkpoint)
        self.given.append(f"{job_id}-{lease.lease_token}")
        self.jobs.add(lease)

    def lose(self, job_id: str) -> None:
        job = self.worker.agent.held.get(job_id)
        if job is not None and job.is_in_engine:
            self.lost.add(job.attempt)
        self.jobs.drop(job_id)

    def control(self, event: str, job_id: str) -> None:
        job = self.worker.agent.held.get(job_id)
        if event == "cancel":
            self.jobs.cancel(job_id)
        elif event == "lose":
            self.lose(job_id)
        elif job is not None:
            self.jobs.preempt(job.attempt)

    def say(self, event: str, number: int) -> None:
        """Have the engine tell of one of the last attempts that it was given, even if that has ended."""
        engine = self.worker.engines.started[-1]
        for attempt in engine.attempts[-1 - number :][:1]:
            match event:
                case "progress":
                    engine.say(StepProgress(attempt=attempt, phase="denoise", step=1, total=9))
                case "finish":
                    engine.say(JobFinished(attempt=attempt, files=(image_in(engine.job_folder(attempt)),)))
                case "fail":
                    engine.say(JobFailed(attempt=attempt, code="boom", message="boom"))
                case _:
                    engine.say(CheckpointReady(attempt=attempt, is_last=True))

    async def die(self, number: int) -> None:
        """End the engine, which works on some of its attempts, and have the next one become ready."""
        started = self.worker.engines.started
        started[-1].die(-9, started[-1].attempts[-1 - number :][:1])
        (await self.worker.engines.next(len(started) + 1)).become_ready()
        await eventually(lambda: self.worker.agent._models.is_ready)

    async def end(self) -> Counter[str]:
        """Drain the worker; return how often the end of each attempt was told."""
        plane = self.worker.plane
        plane.has_storage.set()
        self.worker.agent.drain()
        async with asyncio.timeout(3_600):
            await self.worker.exit_code
        assert not self.worker.agent.held
        completed, failed, released = plane.completions, plane.failures, plane.releases
        return (
            Counter(f"{job_id}-{end.lease_token}" for job_id, end in completed)
            + Counter(f"{job_id}-{end.lease_token}" for job_id, end in failed)
            + Counter(f"{job_id}-{end.lease_token}" for job_id, end in released)
        )


def image_in(folder: Path) -> FinishedFile:
    path = folder / "0.png"
    path.write_bytes(b"an image")
    return FinishedFile(path=str(path), name=path.name, content_type="image/png", width=1, height=1)


async def play(folder: Path, events: list[tuple[str, int]], faults: list[dict[str, Any]]) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _loop, fault: faults.append(fault))
    async with running_agent(folder, checkpoint_seconds=30.0, drain_seconds=5.0) as worker:
        game = Play(worker)
        for event in events:
            await game.happen(*event)
        told = await game.end()
    assert set(told.values()) <= {1}
    assert set(told) == set(game.given) - game.lost


@pytest.fixture
def little_garbage() -> None:
    """Search for garbage only among what the test makes: a process has millions of objects by then."""
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("little_garbage")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(EVENTS, max_size=30))
@example([("lease", 0), ("progress", 0), ("preempt", 0), ("cancel", 0), ("last checkpoint", 0)])
@example([("lease", 0), ("storage", 0), ("finish", 0), ("cancel", 0)])
def test_the_end_of_every_attempt_that_was_not_lost_is_told_once(
    caplog: pytest.LogCaptureFixture, events: list[tuple[str, int]]
) -> None:
    caplog.clear()
    faults: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder:
        run_in_virtual_time(play(Path(folder), events, faults))
    gc.collect()  # what tasks raised that nobody awaited is told with their end
    assert not faults
    assert not [record for record in caplog.records if record.exc_info], "no loop began anew"


@pytest.mark.parametrize("state", HeldState)
def test_a_job_can_leave_in_every_state_and_then_stays_outside(state: HeldState) -> None:
    assert (HeldState.LEFT in MOVES[state]) == (state is not HeldState.LEFT)
