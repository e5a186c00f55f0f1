"""Memory of passes is what was measured, scaled; only passes larger than all before are measured."""

import threading
from unittest.mock import patch

import torch

from diffuserve.models.families.any_pipeline.running.measured_memory import MeasuredMemory, PeakMeter
from diffuserve.models.families.any_pipeline.running.nested import storage_bytes
from support.waiting import HANG_SECONDS

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
MIB = 1 << 20


def tensor(mib: int) -> torch.Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8)


def test_the_peak_counts_what_lives_at_a_time_and_no_views() -> None:
    inputs = tensor(5)
    with PeakMeter(CPU).measure() as peak:
        first = inputs.clone()
        second = first.view(-1, MIB) + 1
        del first
        third = second[0] + second
        del second, third
        tensor(3)
    assert peak.num_bytes == 10 * MIB


def test_what_other_threads_allocate_is_not_counted() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def other() -> None:
        kept = tensor(50)
        begun.set()
        may_end.wait(HANG_SECONDS)
        del kept

    thread = threading.Thread(target=other)
    with PeakMeter(CPU).measure() as peak:
        thread.start()
        assert begun.wait(HANG_SECONDS)
        tensor(2)
        may_end.set()
        thread.join(HANG_SECONDS)
    assert peak.num_bytes == 2 * MIB


def test_on_cuda_the_allocator_is_asked_unless_something_else_runs() -> None:
    meter = PeakMeter(CUDA)
    with (
        patch.object(torch.cuda, "reset_peak_memory_stats") as reset,
        patch.object(torch.cuda, "memory_allocated", return_value=100 * MIB),
        patch.object(torch.cuda, "max_memory_allocated", return_value=130 * MIB),
    ):
        with meter.measure() as lone:
            tensor(2)
        with meter.measure(is_wanted=False), meter.measure() as beside:
            tensor(2)
    assert reset.call_count == 1
    assert (lone.num_bytes, beside.num_bytes) == (30 * MIB, 2 * MIB)


def test_the_largest_pass_says_what_a_token_takes() -> None:
    memory = MeasuredMemory(PeakMeter(CPU), guess=1000)
    assert memory.bytes_of(10) == 15_000
    memory.run(10, 10, lambda: (tensor(1), {})[1])
    assert memory.bytes_of(20) == 3 * MIB
    memory.run(5, 5, lambda: (tensor(50), {})[1])
    assert memory.bytes_of(20) == 3 * MIB, "a smaller one was measured"
    memory.run(40, 20, lambda: (tensor(2), {})[1])
    assert memory.bytes_of(40) == 3 * MIB
    assert memory.has_measured(20)
    assert not memory.has_measured(21)


def test_work_that_failed_or_did_nothing_says_nothing() -> None:
    memory = MeasuredMemory(PeakMeter(CPU), guess=1000)
    failed = memory.run(10, 10, lambda: (tensor(1), {"run": MemoryError()})[1])
    memory.run(10, 10, lambda: {})
    assert list(failed) == ["run"]
    assert memory.bytes_of(10) == 15_000
    assert not memory.has_measured(1)


def test_a_storage_counts_once() -> None:
    values = torch.zeros(100)
    assert storage_bytes({"a": values, "b": [values.view(10, 10), torch.zeros(5)], "c": 3}) == 420
