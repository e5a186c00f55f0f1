"""Torch's use of the cores and the memory of the host."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep the calling thread from starting an OpenMP pool.

    The engine has one pool, in the thread that runs lone requests. A second one, such as loading a
    model on the main thread would leave behind, makes libgomp count more threads than cores and put
    them to sleep between operations: steps took three times as long here.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_freed_memory() -> None:
    """Have glibc keep large freed blocks instead of giving their pages back at once.

    A denoising step on a CPU allocates the same few megabytes again and again; faulting the pages
    in anew each time took a quarter of the step here. Freed memory is reused, so the process stays
    at its peak instead of growing.
    """
    if not sys.platform.startswith("linux"):
        return
    m_trim_threshold, m_mmap_threshold = -1, -3
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return  # another C library, whose allocator has other options
    mallopt(m_mmap_threshold, 32 * 1024 * 1024)
    mallopt(m_trim_threshold, 2**31 - 1)
