"""Reads files into a CUDA device's memory: threads fill pinned buffers, which a stream of its own copies.

It never ran on a GPU: tests run it on the pretended device.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_BUFFER_BYTES = 64 * 1024 * 1024
_NUM_BUFFERS = 4  # each with a thread that reads into it: a disk wants several reads at a time
_LARGEST_GAP = 1024 * 1024  # gaps between tensors up to this size are read, not skipped


@dataclass(frozen=True)
class ByteRange:
    """Bytes of a file from `offset` on, and the device's memory that they go to."""

    file: Path
    offset: int
    target: Tensor

    @property
    def end(self) -> int:
        return self.offset + len(self.target)

    def parts(self, size: int) -> "Iterator[ByteRange]":
        """Yield this in parts of at most `size` bytes."""
        for start, part in enumerate(self.target.split(size)):
            yield ByteRange(self.file, self.offset + start * size, part)


def bytes_of(tensor: Tensor) -> Tensor:
    """Return the memory of a contiguous tensor."""
    return tensor.view(-1).view(torch.uint8)


def read_to_device(
    spans: Sequence[ByteRange],
    device: torch.device,
    on_read: Callable[[int], None] | None = None,
    buffer_bytes: int = _BUFFER_BYTES,
) -> None:
    """Read all spans. Later work of the current stream waits for them; the host does not wait for copies.

    Raise `OSError` if a file cannot be read.
    """
    if not spans:
        return
    reading = _Reading(_batches(spans, buffer_bytes), device, on_read)
    threads = [threading.Thread(target=reading.run, args=(buffer_bytes,)) for _ in range(_NUM_BUFFERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.current_stream(device).wait_stream(reading.stream)
    if reading.error is not None:
        raise reading.error


def _batches(spans: Sequence[ByteRange], size: int) -> Iterator[list[ByteRange]]:
    """Yield the batches to read: consecutive spans of a file, together at most `size` bytes."""
    batch: list[ByteRange] = []
    for span in sorted(spans, key=lambda span: (span.file, span.offset)):
        for part in span.parts(size):
            if batch and not _fits(part, batch, size):
                yield batch
                batch = []
            batch.append(part)
    if batch:
        yield batch


def _fits(part: ByteRange, batch: Sequence[ByteRange], size: int) -> bool:
    is_near = part.file == batch[0].file and part.offset - batch[-1].end <= _LARGEST_GAP
    return is_near and part.end - batch[0].offset <= size


class _Reading:
    """Batches that several threads read, each into a buffer of its own."""

    def __init__(
        self,
        batches: Iterator[list[ByteRange]],
        device: torch.device,
        on_read: Callable[[int], None] | None,
    ) -> None:
        self._batches, self._on_read = batches, on_read
        self.stream = torch.cuda.Stream(device)
        # Work issued before may still use the memory.
        self.stream.wait_stream(torch.cuda.current_stream(device))
        self._lock = threading.Lock()
        self.error: BaseException | None = None

    def run(self, buffer_bytes: int) -> None:
        """Read batches until there is none, or one cannot be read."""
        try:
            buffer = torch.empty(buffer_bytes, dtype=torch.uint8).pin_memory()
            copied: torch.cuda.Event | None = None
            while (batch := self._next()) is not None:
                if copied is not None:
                    copied.synchronize()  # otherwise the buffer would change while it is copied
                _read(batch, buffer)
                with torch.cuda.stream(self.stream):
                    _begin_copies(batch, buffer)
                    copied = self.stream.record_event()
                if self._on_read is not None:
                    self._on_read(sum(len(span.target) for span in batch))
        except BaseException as error:  # raised in the thread that waits for this one
            self.error = error

    def _next(self) -> list[ByteRange] | None:
        with self._lock:
            return None if self.error is not None else next(self._batches, None)


def read_at(descriptor: int, content: memoryview, offset: int) -> bool:
    """Fill memory with the bytes of a file from `offset` on; return `False` if the file is too short."""
    done = 0
    while done < len(content):
        num_read = os.preadv(descriptor, [content[done:]], offset + done)
        if not num_read:
            return False
        done += num_read
    return True


def _begin_copies(batch: Sequence[ByteRange], buffer: Tensor) -> None:
    """Have the current stream copy a batch to where its bytes belong."""
    for span in batch:
        start = span.offset - batch[0].offset
        span.target.copy_(buffer[start : start + len(span.target)], non_blocking=True)


def _array(buffer: Tensor) -> Any:
    return buffer.numpy()


def _read(batch: Sequence[ByteRange], buffer: Tensor) -> None:
    """Fill the front of a buffer with the bytes of a batch. Raise `OSError` if the file ends before."""
    start, size = batch[0].offset, batch[-1].end - batch[0].offset
    content = memoryview(_array(buffer))[:size]
    descriptor = os.open(batch[0].file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not read_at(descriptor, content, start):
            raise OSError(f"{batch[0].file} ends before byte {start + size:,}")
    finally:
        os.close(descriptor)
