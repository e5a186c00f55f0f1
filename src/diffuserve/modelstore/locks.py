"""Locks between the processes of one machine: files locked by `flock`, which a kill releases."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


class PinnedFile:
    """A file that caches keep while this object lives, in whatever process they are.

    Raise `FileNotFoundError` if it is gone already.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)
        if not _is_at(path, self._descriptor):  # removed before it was locked
            raise FileNotFoundError(path)

    def __del__(self) -> None:
        with suppress(AttributeError):
            os.close(self._descriptor)


def remove_unless_in_use(path: Path) -> bool:
    """Remove a file; return whether it is gone, so `False` for one that somebody uses."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _is_at(path: Path, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    return False
