"""Readings of memory."""

import os
from pathlib import Path

import psutil
import pytest

from diffuserve.telemetry import memory
from diffuserve.telemetry.memory import Memory, read_memory


def test_memory_is_short_from_its_fraction_on() -> None:
    assert not Memory(94, 100).is_short(0.95)
    assert Memory(95, 100).is_short(0.95)


def test_memory_without_a_limit_is_never_short() -> None:
    assert not Memory(10**15, 0).is_short(0.95)


def test_memory_of_a_dead_process_counts_as_nothing() -> None:
    alone, with_dead_process = read_memory([]), read_memory([2**22 - 1])
    assert with_dead_process.used == pytest.approx(alone.used, rel=0.2)
    assert alone.used < alone.limit


def test_memory_of_the_engine_is_added() -> None:
    assert read_memory([os.getppid()]).used > read_memory([]).used


@pytest.mark.parametrize(("text", "is_limited"), [("1048576\n", True), ("max\n", False)])
def test_a_container_has_its_own_limit(
    text: str, is_limited: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "memory.max"
    path.write_text(text)
    monkeypatch.setattr(memory, "_CGROUP_LIMIT", path)
    assert read_memory([]).limit == (1_048_576 if is_limited else psutil.virtual_memory().total)


def test_a_machine_without_containers_has_its_physical_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_CGROUP_LIMIT", tmp_path / "none")
    assert read_memory([]).limit == psutil.virtual_memory().total
