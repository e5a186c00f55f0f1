"""The pretended CUDA device computes, counts what it is asked to do, and refuses what CUDA refuses."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._device import _device_constructors

from diffuserve.models.layers.attention import varlen_flash
from diffuserve.models.layers.segments import Segments
from diffuserve.models.preview import PreviewMap
from support.pretend_cuda import CudaLog, PretendTensor, StreamRace, Sync, pretend_cuda

CUDA = torch.device("cuda:0")


@pytest.fixture
def log() -> Iterator[CudaLog]:
    with pretend_cuda() as log:
        yield log


def qkv(dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(5, 3, 2, 8, generator=torch.Generator().manual_seed(1)).to(CUDA, dtype)


def test_results_are_those_of_the_cpu_on_a_cuda_device(log: CudaLog) -> None:
    values = torch.arange(6.0).view(2, 3)
    product = values.to(CUDA) @ values.to(CUDA).t()
    product[0] += 1
    assert product.device == CUDA
    assert product.is_cuda
    assert torch.equal(product.cpu(), values @ values.t() + torch.tensor([[1.0], [0.0]]))


@pytest.mark.parametrize("device", ["cuda", torch.device("cuda"), CUDA])
def test_cuda_without_an_index_is_the_first_device(log: CudaLog, device: Any) -> None:
    moved = torch.ones(2).to(device)
    assert moved.device == moved.to(device, torch.float16).device == moved.cpu().cuda().device == CUDA
    assert torch.ones(2, device=device).device == torch.nn.Linear(2, 2).to(device).weight.device == CUDA
    assert moved.to("cpu").device == torch.device("cpu")


def test_what_torch_remembers_of_its_functions_outlives_a_pretended_device() -> None:
    """transformers asks `torch.tensor([])` for the device of a `with` block, and trusts the answer."""
    _device_constructors.cache_clear()
    with pretend_cuda(), torch.device("meta"):
        torch.empty(1)
    with torch.device("meta"):
        assert torch.tensor([]).device.type == "meta"


def test_inference_mode_changes_nothing(log: CudaLog) -> None:
    weight = torch.nn.Parameter(torch.ones(2, 3).to(CUDA), requires_grad=False)
    with torch.inference_mode():
        result = torch.nn.functional.linear(torch.ones(4, 3, device=CUDA), weight)[1:].cpu()
    assert torch.equal(result, torch.full((3, 2), 3.0))


def test_kernels_are_counted_and_views_are_none(log: CudaLog) -> None:
    values = torch.zeros(4, 2, device=CUDA)
    log.clear()
    (values + 1).view(2, 4).t()
    assert log.kernels == {"add": 1}


def test_each_wait_of_the_host_is_counted(log: CudaLog) -> None:
    values = torch.zeros(4).to(CUDA)
    values.sum().item()
    values.nonzero()
    values.cpu()
    torch.cuda.current_stream().synchronize()
    torch.cuda.synchronize()
    kinds = ("copy to the device", "_local_scalar_dense", "nonzero", "copy to the host", "stream", "device")
    assert log.syncs_by_kind() == dict.fromkeys(kinds, 1)


def test_a_wait_is_counted_where_the_package_makes_it(log: CudaLog) -> None:
    PreviewMap([[0.0, 0.0, 0.0]], [0.0, 0.0, 0.0]).to(CUDA)
    assert log.syncs == {Sync("copy to the device", "models/preview.py:to"): 2}


def test_a_copy_that_does_not_block_is_no_wait(log: CudaLog) -> None:
    Segments.of((2, 3), CUDA)
    torch.zeros(4).to(CUDA, non_blocking=True)
    assert log.syncs_by_kind() == {}


def test_tensors_of_two_devices_are_refused(log: CudaLog) -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.zeros(4, device=CUDA) + torch.ones(4)
    with pytest.raises(RuntimeError, match="same device"):
        torch.zeros(4, device=CUDA).index_select(0, torch.tensor([1]))
    torch.zeros(4, device=CUDA) + torch.tensor(1.0), "numbers may be on the CPU"


def test_an_index_of_the_host_is_counted_as_a_wait(log: CudaLog) -> None:
    torch.zeros(4, device=CUDA)[torch.tensor([1, 2])]
    assert log.syncs_by_kind() == {"index of the host": 1}


def test_a_generator_of_the_cpu_is_refused(log: CudaLog) -> None:
    with pytest.raises(RuntimeError, match="generator"):
        torch.randn(4, device=CUDA, generator=torch.Generator())


def test_tensors_are_no_arrays(log: CudaLog) -> None:
    with pytest.raises((TypeError, RuntimeError)):
        torch.zeros(4, device=CUDA).numpy()


def test_varlen_attention_stays_within_each_sequence(log: CudaLog) -> None:
    rows = qkv()
    attended = varlen_flash(rows, Segments.of((2, 3), CUDA)).cpu()
    alone = varlen_flash(rows[2:], Segments.of((3,), CUDA)).cpu()
    assert torch.equal(attended[2:], alone)


def test_varlen_attention_refuses_starts_that_are_no_int32(log: CudaLog) -> None:
    starts = torch.tensor([0, 2, 5], device=CUDA)
    with pytest.raises(RuntimeError, match="int32"):
        varlen_flash(qkv(), Segments((2, 3), starts))


def test_varlen_attention_refuses_float32_and_starts_that_miss_the_end(log: CudaLog) -> None:
    with pytest.raises(RuntimeError, match="float32"):
        varlen_flash(qkv(torch.float32), Segments.of((2, 3), CUDA))
    with pytest.raises(RuntimeError, match="number of tokens"):
        varlen_flash(qkv(), Segments.of((2, 2), CUDA))


def test_reading_what_another_stream_writes_is_a_race(log: CudaLog) -> None:
    values = torch.zeros(4, device=CUDA)
    with torch.cuda.stream(torch.cuda.Stream()), pytest.raises(StreamRace, match="default stream"):
        values + 1


@pytest.mark.parametrize("waits", [False, True])
def test_overwriting_what_another_stream_may_still_read_is_a_race(log: CudaLog, waits: bool) -> None:
    reader, writer = torch.cuda.Stream(), torch.cuda.Stream()
    values = torch.zeros(4, device=CUDA)
    written = torch.cuda.current_stream().record_event()
    reader.wait_event(written)
    writer.wait_event(written)
    with torch.cuda.stream(reader):
        values + 1
    if waits:
        writer.wait_stream(reader)
    refusal = nullcontext() if waits else pytest.raises(StreamRace, match="may still read")
    with torch.cuda.stream(writer), refusal:
        values.fill_(1)


@pytest.mark.parametrize("way", ["event", "stream", "synchronize", "device", "item"])
def test_a_stream_that_waited_for_the_other_may_read(log: CudaLog, way: str) -> None:
    writer, reader = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(writer):
        values = torch.zeros(4, device=CUDA)
        if way == "item":
            values.sum().item()
    match way:
        case "event":
            reader.wait_event(writer.record_event())
        case "stream":
            reader.wait_stream(writer)
        case "synchronize":
            writer.synchronize()
        case "device":
            torch.cuda.synchronize()
    with torch.cuda.stream(reader):
        assert isinstance(values + 1, PretendTensor)


def test_an_event_covers_no_later_work(log: CudaLog) -> None:
    writer, reader = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(writer):
        values = torch.zeros(4, device=CUDA)
        event = writer.record_event()
        values += 1
    reader.wait_event(event)
    with torch.cuda.stream(reader), pytest.raises(StreamRace):
        values + 1


def test_torch_finds_one_device(log: CudaLog) -> None:
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1
    assert torch.cuda.get_device_capability() == (9, 0)


def test_after_the_block_all_is_as_before() -> None:
    with pretend_cuda():
        pass
    assert not torch.cuda.is_available()
    with pytest.raises((RuntimeError, AssertionError)):
        torch.zeros(1, device=CUDA)
