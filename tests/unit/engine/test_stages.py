"""Denoising and decoding share a CPU's core slots, and spread operations only where it pays."""

import threading
from collections.abc import Iterator

import pytest

from diffuserve.engine.stages import CpuStageExecutor, Stage, StageExecutor, StageRun

CORE_SLOTS = 4


@pytest.fixture
def stages() -> Iterator[CpuStageExecutor]:
    executor = CpuStageExecutor(CORE_SLOTS, allow_intra_op=True)
    yield executor
    executor.close()


@pytest.fixture
def deterministic() -> Iterator[CpuStageExecutor]:
    executor = CpuStageExecutor(CORE_SLOTS, allow_intra_op=False)
    yield executor
    executor.close()


def thread_name() -> str:
    return threading.current_thread().name


def run(executor: StageExecutor, num_tasks: int, expected_seconds: float | None = None) -> StageRun[str]:
    return executor.run(Stage.DENOISE, [thread_name] * num_tasks, expected_seconds)


def is_intra_op(stage_run: StageRun[str]) -> bool:
    return all(name.startswith("diffuserve-intra-op") for name in stage_run.results)


def test_decoding_has_half_of_the_core_slots_beside_steps_and_steps_have_all(
    stages: CpuStageExecutor,
) -> None:
    stages.set_busy(Stage.DECODE, True)
    assert stages.num_core_slots(Stage.DECODE) == CORE_SLOTS, "denoising has no work"
    assert run(stages, CORE_SLOTS).share == 0.5
    stages.set_busy(Stage.DENOISE, True)
    assert stages.num_core_slots(Stage.DECODE) == CORE_SLOTS // 2
    assert stages.num_core_slots(Stage.DENOISE) == CORE_SLOTS
    stages.set_busy(Stage.DECODE, False)
    assert run(stages, CORE_SLOTS).share == 1.0


@pytest.mark.parametrize("num_tasks", [1, 2, 3])
def test_beside_the_other_stage_a_run_is_spread_over_half_of_the_cores(
    stages: CpuStageExecutor, num_tasks: int
) -> None:
    stages.set_busy(Stage.DECODE, True)
    assert is_intra_op(run(stages, num_tasks)) == (num_tasks < CORE_SLOTS // 2)


def test_device_seconds_are_the_share_of_the_wall_time() -> None:
    assert StageRun([None], seconds=3.0, share=0.5).device_seconds == 1.5


@pytest.mark.parametrize("num_tasks", [1, 3, 4, 9])
def test_only_fewer_tasks_than_core_slots_run_intra_op_parallel(
    stages: CpuStageExecutor, num_tasks: int
) -> None:
    assert is_intra_op(run(stages, num_tasks)) == (num_tasks < CORE_SLOTS)


def test_without_permission_no_task_runs_intra_op_parallel(deterministic: CpuStageExecutor) -> None:
    assert not is_intra_op(run(deterministic, 1))


def test_stalls_in_a_row_pause_intra_op_parallel_runs(stages: CpuStageExecutor) -> None:
    for _ in range(3):
        assert is_intra_op(run(stages, 1, expected_seconds=0.0))
    assert not is_intra_op(run(stages, 1))


def test_a_single_stall_pauses_nothing(stages: CpuStageExecutor) -> None:
    for _ in range(3):
        run(stages, 1, expected_seconds=0.0)
        stages._stalls.observe(0.0, expected_seconds=1.0)
    assert is_intra_op(run(stages, 1))


def test_results_come_in_the_order_of_the_tasks(stages: CpuStageExecutor) -> None:
    tasks = [lambda number=number: number for number in range(9)]
    assert stages.run(Stage.DECODE, tasks).results == list(range(9))


@pytest.mark.parametrize("num_tasks", [1, 4])
def test_a_tasks_exception_is_raised_and_the_executor_stays_usable(
    stages: CpuStageExecutor, num_tasks: int
) -> None:
    def fail() -> str:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        stages.run(Stage.DENOISE, [fail] * num_tasks)
    assert is_intra_op(run(stages, 1))
