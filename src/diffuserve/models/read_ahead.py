"""Has the kernel read files while this process is still busy with something else. It loads no torch."""

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

_BLOCK = 8 * 1024 * 1024
_MOST_OF_MEMORY = 0.5
"""Share of the free memory that files may take: what is read beyond it would push out what was read first."""
_IF_CACHED: int = getattr(os, "RWF_NOWAIT", 0)


def start_reading(find_files: Callable[[], Iterable[Path]]) -> threading.Thread:
    """Read files into the kernel's page cache, on a thread that holds up nobody, and return it.

    Weights are memory-mapped: a page that is not cached stops the thread which touches it, and the kernel
    reads little ahead of it. On a thread of its own, without the interpreter's lock, the disk works while
    torch is imported. Advice to the kernel (`POSIX_FADV_WILLNEED`) gained nothing.
    """

    def read() -> None:
        read_into_cache(find_files())

    thread = threading.Thread(target=read, name="read-ahead", daemon=True)
    thread.start()
    return thread


def read_into_cache(files: Iterable[Path], block: int = _BLOCK) -> int:
    """Read what is not in the page cache yet; return the number of bytes that were read.

    Nothing is read of files that are too large for the memory, and nothing after one that cannot be read: who
    needs it says why.
    """
    files = list(files)
    buffer = bytearray(block)
    try:
        if sum(file.stat().st_size for file in files) > _MOST_OF_MEMORY * psutil.virtual_memory().available:
            return 0
        return sum(_read(file, buffer) for file in files)
    except OSError:
        return 0


def _read(file: Path, buffer: bytearray) -> int:
    num_read = 0
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for offset in range(0, os.fstat(descriptor).st_size, len(buffer)):
            if not _is_cached(descriptor, offset):
                num_read += os.preadv(descriptor, [buffer], offset)
    finally:
        os.close(descriptor)
    return num_read


def _is_cached(descriptor: int, offset: int) -> bool:
    """Return whether a block's first byte is in the cache, and so, most likely, the block."""
    if not _IF_CACHED:
        return False
    try:
        return os.preadv(descriptor, [bytearray(1)], offset, _IF_CACHED) == 1
    except OSError:  # it is not, or the file system cannot tell
        return False
