"""Locks between the processes of one machine: files locked by `flock`, which a kill releases."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class FileLock:
    """A lock that is held until `release`, or until this process ends."""

    def __init__(self, path: Path, *, is_shared: bool = False) -> None:
        """Open the file of the lock; `take` or `try_take` follow."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._mode = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def take(self) -> None:
        """Wait until no other process holds a conflicting lock."""
        fcntl.flock(self._file, self._mode)

    def try_take(self) -> bool:
        """Take the lock if no other process holds a conflicting one."""
        try:
            fcntl.flock(self._file, self._mode | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def touch(self) -> None:
        """Record the time of this use in the file."""
        os.utime(self._file)

    def release(self) -> None:
        """Release the lock. Further calls do nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait for an exclusive lock, and hold it within the block."""
    lock = FileLock(path)
    try:
        lock.take()
        yield
    finally:
        lock.release()
