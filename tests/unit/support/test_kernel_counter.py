"""The counter of kernels counts what a GPU would be asked to do, on tensors without memory."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from support.kernel_counter import KernelCounter, Work, fake_cuda

MIB = 2**20


@pytest.fixture(autouse=True)
def cuda() -> Iterator[None]:
    with fake_cuda(), torch.no_grad():
        yield


def floats(*shape: int) -> Tensor:
    return torch.empty(shape, device="cuda:0")


def test_views_and_the_host_cost_nothing() -> None:
    values = floats(4, 6)
    with KernelCounter() as counter:
        values.view(6, 4).t()[1:].unflatten(0, (1, -1))
        torch.empty(5) + 1
    assert counter.total == Work()


def test_operands_are_read_and_results_are_written_once() -> None:
    values, row = floats(256, 1024), floats(1, 1024)
    with KernelCounter() as counter:
        values + row.expand(256, 1024)
        values.mul_(2)
        values.copy_(row)
    assert counter.by_operation == {
        "add": Work(1, 2 * MIB + 4096),
        "mul_": Work(1, 2 * MIB),
        "copy_": Work(1, MIB + 4096),
    }


def test_moved_rows_are_read_and_written_once() -> None:
    values, places = floats(1024, 256), torch.empty(8, dtype=torch.int64, device="cuda:0")
    with KernelCounter() as counter:
        rows = values.index_select(0, places)
        values.index_copy_(0, places, rows)
    moved = Work(1, 2 * 8 * 1024 + 8 * 8)
    assert counter.by_operation == {"index_select": moved, "index_copy_": moved}


def test_a_linear_layer_is_one_product() -> None:
    weight, bias, values = floats(16, 32), floats(16), floats(8, 32)
    with KernelCounter() as counter:
        torch.nn.functional.linear(values, weight, bias)
    assert (
        counter.total
        == counter.of("product")
        == Work(1, 4 * (16 * 32 + 16 + 8 * 32 + 8 * 16), 2 * 8 * 32 * 16)
    )


def test_the_peak_is_that_of_what_lives_at_once() -> None:
    values = floats(MIB // 4)
    with KernelCounter() as counter:
        for _ in range(3):
            kept = values + 1
            kept.view(2, -1).mul_(2)
            del kept
        _both = values + 1, values + 2
    assert counter.peak_bytes == 2 * MIB
