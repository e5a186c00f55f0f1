"""Batches in which one item's failure stays its own (INV-3), and what the failure was."""

import traceback
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

Item = TypeVar("Item")
Value = TypeVar("Value")


def isolate(items: Sequence[Item], run: Callable[[Sequence[Item]], list[Value]]) -> list[Value | Exception]:
    """Run a batch; if it fails, halve it until only the culprits fail.

    Smaller batches also need less memory, so a batch that ran out of it is split down to single items. The
    frames of a failure are dropped, as their tensors would take up memory that the retries need. A fault of
    the device is no item's failure, and is raised.
    """
    if not items:
        return []
    try:
        return list(run(items))
    except Exception as error:
        if is_device_fault(error):
            raise
        failure = without_frames(error)
    _free_cached_memory()
    if len(items) == 1:
        return [failure]
    middle = len(items) // 2
    return isolate(items[:middle], run) + isolate(items[middle:], run)


def without_frames(error: Exception) -> Exception:
    """Return an exception whose chain keeps no frames alive.

    Its traceback becomes a note: text for the log.
    """
    places = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        link = pending.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            traceback.clear_frames(link.__traceback__)  # an executor or a debugger may still hold them
            link.__traceback__ = None
            pending += [link.__cause__, link.__context__]
    note = f"Raised at (most recent call last):\n{places}"
    if places and note not in getattr(error, "__notes__", ()):
        error.add_note(note)
    return error


def _free_cached_memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def is_out_of_memory(error: Exception) -> bool:
    """Return whether memory ran out.

    CUDA's allocator has an exception of its own. The CPU's raises a plain `RuntimeError`, and CUDA itself
    its one general error.
    """
    if isinstance(error, torch.AcceleratorError):
        return "out of memory" in str(error)
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def is_device_fault(error: Exception) -> bool:
    """Return whether the device itself failed, so that every later call may fail too."""
    return isinstance(error, torch.AcceleratorError) and not is_out_of_memory(error)
