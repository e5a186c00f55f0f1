"""The capacity that a worker may claim."""

import os
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.worker import capacity
from diffuserve.worker.capacity import NO_CAPACITY, Capacity, Memory, free_capacity, read_memory


@pytest.mark.parametrize(
    ("tokens", "num_finishing", "expected"),
    [
        ([], 0, Capacity(4, 200)),
        ([60, 60], 0, Capacity(2, 80)),
        ([60] * 4, 0, NO_CAPACITY),
        ([], 15, Capacity(1, 200)),
        ([], 16, NO_CAPACITY),
        ([150, 60], 0, Capacity(2, 40)),
        ([900], 0, Capacity(3, 100)),
        ([900, 900], 0, NO_CAPACITY),
    ],
)
def test_capacity_is_a_step_beyond_the_running_step(
    tokens: list[int], num_finishing: int, expected: Capacity
) -> None:
    assert free_capacity(4, 100, tokens, num_finishing) == expected


@given(
    max_jobs=st.integers(1, 64),
    budget=st.integers(1, 10_000),
    tokens=st.lists(st.integers(0, 10_000), max_size=80),
    num_finishing=st.integers(0, 300),
)
def test_capacity_has_both_jobs_and_tokens_or_neither(
    max_jobs: int, budget: int, tokens: list[int], num_finishing: int
) -> None:
    free = free_capacity(max_jobs, budget, tokens, num_finishing)
    assert free == NO_CAPACITY or (free.num_jobs > 0 and free.num_tokens > 0)
    assert free.num_jobs + len(tokens) <= max(max_jobs, len(tokens))
    held = sum(min(each, budget) for each in tokens)
    assert held + free.num_tokens <= max(2 * budget, held)


def test_memory_is_short_from_its_fraction_on() -> None:
    assert not Memory(94, 100).is_short(0.95)
    assert Memory(95, 100).is_short(0.95)


def test_memory_without_a_limit_is_never_short() -> None:
    assert not Memory(10**15, 0).is_short(0.95)


def test_memory_of_a_dead_engine_counts_as_nothing() -> None:
    alone, with_dead_engine = read_memory([]), read_memory([2**22 - 1])
    assert with_dead_engine.used == pytest.approx(alone.used, rel=0.2)
    assert alone.used < alone.limit


def test_memory_of_the_engine_is_added() -> None:
    assert read_memory([os.getppid()]).used > read_memory([]).used


@pytest.mark.parametrize(("text", "is_limited"), [("1048576\n", True), ("max\n", False)])
def test_a_container_has_its_own_limit(
    text: str, is_limited: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "memory.max"
    path.write_text(text)
    monkeypatch.setattr(capacity, "_CGROUP_LIMIT", path)
    assert read_memory([]).limit == (1_048_576 if is_limited else psutil.virtual_memory().total)


def test_a_machine_without_containers_has_its_physical_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "_CGROUP_LIMIT", tmp_path / "none")
    assert read_memory([]).limit == psutil.virtual_memory().total
