"""Prompts are judged in processes of their own, which leave the event loop free and may die."""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable

import pytest

from diffuserve.domain.errors import ModerationUnavailable
from diffuserve.domain.safety import Action, FilterInfo, Verdict
from diffuserve.safety.classifiers.embedded import EmbeddedClassifier
from diffuserve.safety.policies.policy_file import load_policy
from diffuserve.safety.processes import judge_pool
from diffuserve.safety.processes.pooled import MAX_INLINE_CHARACTERS, PooledFilter
from diffuserve.safety.prompt import PolicyFilter
from support.waiting import HANG_SECONDS, eventually

POLICY = load_policy()
CLASSIFIER = EmbeddedClassifier.load()
LONG = ("a small house by the lake with two boats and a red door, " * 40)[:2_000]
BLOCKED = f"{LONG} nude woman"
assert len(LONG) > MAX_INLINE_CHARACTERS


def judges() -> list[int]:
    children = multiprocessing.active_children()
    return [child.pid for child in children if child.name == "diffuserve-judge" and child.pid]


@pytest.fixture
async def pooled() -> AsyncGenerator[PooledFilter]:
    pooled = PooledFilter(POLICY, CLASSIFIER, num_processes=1)
    yield pooled
    await pooled.close()
    assert judges() == []


async def ticks_during(work: Awaitable[object]) -> int:
    """Return how often another task of the loop ran while this work was done."""
    num_ticks = 0

    async def tick() -> None:
        nonlocal num_ticks
        while True:
            num_ticks += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    await work
    ticking.cancel()
    return num_ticks


async def test_verdicts_are_those_of_the_filter_and_the_loop_stays_free(pooled: PooledFilter) -> None:
    alone = PolicyFilter(POLICY, CLASSIFIER)
    assert pooled.info == alone.info
    assert (await pooled.check("a nude woman")).action is Action.BLOCK
    assert judges() == [], "a short prompt needs no process"
    prompts = [LONG, BLOCKED, "a cat"]
    assert await pooled.check_all(prompts) == await alone.check_all(prompts)
    assert len(judges()) == 1
    inside = await ticks_during(alone.check_all([LONG] * 4))
    outside = await ticks_during(pooled.check_all([LONG] * 4))
    assert outside > 10 * inside


async def test_a_process_that_dies_is_started_again(pooled: PooledFilter) -> None:
    verdict = await pooled.check(BLOCKED)
    for _ in range(2):
        [pid] = judges()
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda pid=pid: pid not in judges())  # type: ignore[misc]
        assert await pooled.check(BLOCKED) == verdict


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=str)
async def test_a_signal_to_all_processes_leaves_those_that_judge(
    pooled: PooledFilter, number: signal.Signals
) -> None:
    await pooled.check(LONG)
    before = judges()
    os.kill(before[0], number)
    assert (await pooled.check(BLOCKED)).action is Action.BLOCK
    assert judges() == before


def test_a_program_that_does_not_close_its_pool_ends_all_the_same() -> None:
    program = (
        "import asyncio; from diffuserve.safety.processes.judge_pool import JudgePool; "
        "from diffuserve.safety.policies.policy_file import load_policy; "
        "asyncio.run(JudgePool(load_policy(), None, 1).check(['a cat'], 'ada'))"
    )
    subprocess.run((sys.executable, "-c", program), check=True, timeout=HANG_SECONDS)


async def test_a_process_that_is_stuck_is_replaced(
    pooled: PooledFilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pooled.check(LONG)
    [stuck] = judges()
    os.kill(stuck, signal.SIGSTOP)
    monkeypatch.setattr(judge_pool, "_LONGEST_SECONDS", 0.0)
    with pytest.raises(ModerationUnavailable, match="died"):
        await pooled.check(LONG)
    assert stuck not in judges()
    monkeypatch.undo()
    assert (await pooled.check(BLOCKED)).action is Action.BLOCK


class _Waiting:
    """A classifier that waits for a server, and cannot be sent to another process."""

    info = FilterInfo("waiting", "1")

    def __init__(self) -> None:
        self._process = os.getpid()
        self._unpicklable = lambda: None

    async def scores(self, prompt: str) -> dict[str, float]:
        assert os.getpid() == self._process
        return {"violence": 0.9 if "boats" in prompt else 0.0}

    async def close(self) -> None: ...


async def test_a_classifier_that_waits_stays_in_the_server() -> None:
    pooled = PooledFilter(POLICY, _Waiting(), num_processes=1)
    try:
        found: list[Verdict] = await pooled.check_all([LONG, BLOCKED, "a cat"])
    finally:
        await pooled.close()
    assert [verdict.action for verdict in found] == [Action.BLOCK, Action.BLOCK, Action.ALLOW]
    assert {finding.category for finding in found[1].findings} == {"violence", "sexual"}
