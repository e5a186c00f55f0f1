"""The cost of a worker's end follows its jobs, and is told when it has changed."""

import asyncio
from pathlib import Path
from typing import cast

import pytest

from diffuserve.agent.loops.deletion_cost import DELETION_COST, DeletionCostLoop, deletion_cost
from diffuserve.agent.pod import Pod
from diffuserve.agent.state.agent_state import AgentState
from diffuserve.agent.state.held_job import HeldJob
from diffuserve.domain.errors import ServerUnavailable
from support.virtual_time import in_virtual_time
from support.worker_fakes import make_lease


def held(cost_seconds: float, step: int = 0, total: int = 0) -> HeldJob:
    job = HeldJob(make_lease(cost_seconds=cost_seconds), folder=Path())
    job.step, job.total = step, total
    return job


class FakePod:
    """Keeps what is annotated; the first try fails."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.tries = 0

    async def annotate(self, key: str, value: str) -> None:
        self.tries += 1
        if self.tries == 1:
            raise ServerUnavailable("starting")
        self.told.append((key, value))


@in_virtual_time
async def test_an_idle_worker_costs_nothing_and_a_busy_one_what_is_left() -> None:
    assert deletion_cost([]) == 0
    assert deletion_cost([held(3.0)]) == 200
    assert deletion_cost([held(3.0), held(250.0)]) == 400
    assert deletion_cost([held(250.0, step=9, total=10)]) == 200
    assert deletion_cost([held(36_000.0)]) == 1_000


@in_virtual_time
async def test_only_changes_are_told_and_failures_again() -> None:
    state, pod = AgentState(), FakePod()
    task = asyncio.create_task(DeletionCostLoop(cast(Pod, pod), state).run())
    await asyncio.sleep(100.0)
    assert pod.told == [(DELETION_COST, "0")]
    state.held["j1"] = held(150.0)
    await asyncio.sleep(100.0)
    state.held.clear()
    await asyncio.sleep(100.0)
    assert [value for _, value in pod.told] == ["0", "300", "0"]
    assert pod.tries == 4
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@in_virtual_time
async def test_without_a_pod_nothing_is_told() -> None:
    await DeletionCostLoop(None, AgentState()).run()
