"""Weights are read to a pretended CUDA device: every byte, after the work before, before the work after."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from diffuserve.models.registry import load_pipeline
from diffuserve.models.weights import device_reader
from diffuserve.models.weights.device_reader import ByteRange, bytes_of, read_to_device
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.prepared import NewCopy, WholeCopy
from diffuserve.models.weights.stored_tensors import stored_tensors
from support.pipeline_weights import weights
from support.pretend_cuda import CudaLog, PretendTensor, StreamRace, pretend_cuda
from support.pretend_streams import ORDER, PretendEvent, PretendStream, on_stream

CUDA = torch.device("cuda:0")
BUFFER = 1000


@pytest.fixture
def log() -> Iterator[CudaLog]:
    with pretend_cuda() as log:
        yield log


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two files of bytes that differ from place to place."""
    generator = torch.Generator().manual_seed(0)
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        content = torch.randint(0, 256, (20 * BUFFER,), dtype=torch.uint8, generator=generator)
        file.write_bytes(content.numpy().tobytes())
    return files


def spans_of(files: Sequence[Path]) -> list[ByteRange]:
    """Return spans in no order: small ones, large ones, and gaps between them."""
    places = [(7 * BUFFER, 3 * BUFFER + 1), (0, 5), (5, 40), (100, BUFFER), (19 * BUFFER, BUFFER)]
    return [
        ByteRange(file, offset, torch.empty(size, dtype=torch.uint8, device=CUDA))
        for offset, size in places
        for file in files
    ]


def content(span: ByteRange) -> tuple[bytes, bytes]:
    """Return what arrived, and what should have."""
    assert isinstance(span.target, PretendTensor)
    expected = span.file.read_bytes()[span.offset : span.end]
    return span.target.cpu_tensor.numpy().tobytes(), expected


def test_every_byte_arrives_where_it_belongs(log: CudaLog, files: list[Path]) -> None:
    spans, counts = spans_of(files), list[int]()
    read_to_device(spans, CUDA, counts.append, BUFFER)
    for span in spans:
        found, expected = content(span)
        assert found == expected
    assert sum(counts) == sum(len(span.target) for span in spans)
    assert log.streams["default stream"] == 0


def test_work_that_follows_waits_for_the_copies(log: CudaLog, files: list[Path]) -> None:
    spans = spans_of(files)
    read_to_device(spans, CUDA, buffer_bytes=BUFFER)
    for span in spans:
        span.target.add_(1)
    assert log.syncs_by_kind().get("copy to the device", 0) == 0


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("number", [0, 1])
def test_each_of_the_two_waits_between_streams_is_needed(files: list[Path], number: int) -> None:
    """The first is for what used the memory before, the second for what uses it afterwards."""
    spans = spans_of(files)
    for span in spans:
        span.target.zero_()
    wait, count = PretendStream.wait_stream, iter(range(2))

    def wait_stream(stream: PretendStream, other: PretendStream) -> None:
        if next(count) != number:
            wait(stream, other)

    def read_and_use() -> None:
        read_to_device(spans, CUDA, buffer_bytes=BUFFER)
        for span in spans:
            span.target.add_(1)

    with patch.object(PretendStream, "wait_stream", wait_stream), pytest.raises(StreamRace):
        read_and_use()


class LateCopies:
    """Copies that are done when somebody waits for them, and then read what is in the buffer."""

    def __init__(self, is_heeded: bool) -> None:
        """Take waits for events for what they are, or ignore them."""
        self._is_heeded = is_heeded
        self._lock = threading.Lock()
        self._pending: list[Callable[[], None]] = []
        self._copy = device_reader._begin_copies

    def begin(self, batch: Sequence[ByteRange], buffer: Tensor) -> None:
        stream = ORDER.current()

        def copy() -> None:
            with on_stream(stream):
                self._copy(batch, buffer)

        with self._lock:
            self._pending.append(copy)

    def synchronize(self, _event: PretendEvent) -> None:
        if self._is_heeded:
            self.finish()

    def finish(self) -> None:
        with self._lock:
            for copy in self._pending:
                copy()
            self._pending.clear()


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("is_heeded", [True, False])
def test_no_buffer_is_filled_before_it_was_copied(files: list[Path], is_heeded: bool) -> None:
    spans, late = spans_of(files), LateCopies(is_heeded)
    with (
        patch.object(device_reader, "_begin_copies", late.begin),
        patch.object(PretendEvent, "synchronize", lambda event: late.synchronize(event)),
    ):
        read_to_device(spans, CUDA, buffer_bytes=BUFFER)
        late.finish()
    is_equal = all(found == expected for found, expected in map(content, spans))
    assert is_equal == is_heeded, "without its wait the reader is caught"


@pytest.mark.usefixtures("log")
def test_a_file_that_ends_too_early_is_named(files: list[Path]) -> None:
    spans = spans_of(files)
    files[1].write_bytes(bytes(8 * BUFFER))
    with pytest.raises(OSError, match=f"{files[1]} ends before byte"):
        read_to_device(spans, CUDA, buffer_bytes=BUFFER)


# Which weights are cast goes by the model, and how they are read does not: one model shows both dtypes.
@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        ("tiny-flux", torch.bfloat16),
        ("tiny-flux", torch.float32),
        ("tiny-sd", torch.bfloat16),
        ("tiny-video", torch.float32),
        pytest.param("tiny-sd", torch.float32, marks=pytest.mark.slow),
        pytest.param("tiny-video", torch.bfloat16, marks=pytest.mark.slow),
    ],
)
def test_a_model_has_the_weights_that_it_has_on_the_cpu(
    model: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    """Weights come from its own files, some of which are cast, and from a prepared copy."""
    plan = LoadPlan(torch.device("cpu"), dtype)
    load_pipeline(model, replace(plan, copy=NewCopy(tmp_path, lambda _num_bytes: None)))
    expected = weights(load_pipeline(model, plan))
    with pretend_cuda() as log:
        for copy in (None, WholeCopy(tmp_path, is_strict=True)):
            found = weights(load_pipeline(model, LoadPlan(CUDA, dtype, copy=copy)))
            assert found.keys() == expected.keys()
            for name, tensor in found.items():
                assert isinstance(tensor, PretendTensor)
                assert tensor.stride() == expected[name].stride()
                assert torch.equal(tensor.cpu_tensor, expected[name]), name
        assert sum(count for stream, count in log.streams.items() if stream != "default stream") > 100


def test_the_header_of_a_file_tells_where_its_tensors_are(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(5, dtype=torch.bfloat16)}
    save_file(tensors, tmp_path / "x.safetensors")
    found = stored_tensors(tmp_path / "x.safetensors")
    raw = (tmp_path / "x.safetensors").read_bytes()
    for name, tensor in tensors.items():
        stored = found[name]
        assert (stored.shape, stored.num_bytes) == (tuple(tensor.shape), tensor.nbytes)
        assert raw[stored.offset : stored.offset + stored.num_bytes] == bytes_of(tensor).numpy().tobytes()
    assert {name: stored.dtype for name, stored in found.items()} == {"a": "F32", "b": "BF16"}
