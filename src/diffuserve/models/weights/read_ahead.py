"""Makes the kernel read files while this process is still busy otherwise. It imports no torch."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil

_BLOCK = 8 * 1024 * 1024
_NUM_THREADS = 4
"""Reads that a disk has at a time: with one alone it rests while its bytes are copied."""
_MAX_MEMORY_SHARE = 0.5
"""Share of the free memory that files may take: what is read beyond it would push out what was read first."""
_IF_CACHED: int = getattr(os, "RWF_NOWAIT", 0)


def start_reading(find_files: Callable[[], Iterable[Path]]) -> threading.Thread:
    """Read files into the kernel's page cache on background threads; return the thread to wait for.

    Weights are memory-mapped: a page that is not cached blocks the thread that touches it, and the kernel
    reads little ahead. Threads without the interpreter's lock let the disk work while torch is imported.
    Advice to the kernel (`POSIX_FADV_WILLNEED`) gained nothing.
    """

    def read() -> None:
        read_into_cache(find_files())

    thread = threading.Thread(target=read, name="read-ahead", daemon=True)
    thread.start()
    return thread


def read_into_cache(files: Iterable[Path], block: int = _BLOCK) -> int:
    """Read the blocks that are not in the page cache yet, in order; return the number of bytes read.

    Nothing is read if the files are too large for the memory, or if one cannot be opened, which loading it
    reports.
    """
    files = list(files)
    try:
        if sum(file.stat().st_size for file in files) > _MAX_MEMORY_SHARE * psutil.virtual_memory().available:
            return 0
        with ExitStack() as opened:
            return _read_all([_open(file, opened) for file in files], block)
    except OSError:
        return 0


def _open(file: Path, opened: ExitStack) -> int:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    opened.callback(os.close, descriptor)
    return descriptor


def _read_all(descriptors: Sequence[int], block: int) -> int:
    """Read files by several threads, each of which takes the next block."""
    blocks, lock = _blocks(descriptors, block), threading.Lock()
    counts: list[int] = []

    def read() -> None:
        buffer = bytearray(block)
        while True:
            with lock:
                found = next(blocks, None)
            if found is None:
                return
            counts.append(_read_block(*found, buffer))

    threads = [threading.Thread(target=read, name="read-ahead", daemon=True) for _ in range(_NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


def _blocks(descriptors: Sequence[int], block: int) -> Iterator[tuple[int, int]]:
    for descriptor in descriptors:
        for offset in range(0, os.fstat(descriptor).st_size, block):
            yield descriptor, offset


def _read_block(descriptor: int, offset: int, buffer: bytearray) -> int:
    try:
        if _is_cached(descriptor, min(offset + len(buffer), os.fstat(descriptor).st_size) - 1):
            return 0
        return os.preadv(descriptor, [buffer], offset)
    except OSError:  # the reader of the block reports why
        return 0


def _is_cached(descriptor: int, offset: int) -> bool:
    """Return whether a byte is in the page cache: the last one of a block stands for all of it.

    The first ones do not, since the kernel has read ahead of a read of the previous block.
    """
    if not _IF_CACHED:
        return False
    try:
        return os.preadv(descriptor, [bytearray(1)], offset, _IF_CACHED) == 1
    except OSError:  # it is not cached, or the file system does not report it
        return False
