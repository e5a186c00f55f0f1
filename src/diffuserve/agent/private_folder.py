"""A folder for one engine's socket and files, which is deleted even if its owner is killed."""

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_PREFIX = "diffuserve-worker-"
_RECENT_SECONDS = 60.0  # a younger folder's owner may be about to lock it


class PrivateFolder:
    """A temporary folder that is locked while its owner lives.

    The kernel releases the lock even after `kill -9`, and the next owner deletes folders without one.
    """

    def __init__(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock: int | None = os.open(self.path, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def delete(self) -> None:
        """Delete the folder and its files. Further calls do nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _sweep(root: Path) -> None:
    """Delete the folders of this user's agents that were killed."""
    for folder in root.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # no folder, or already deleted by another agent
            _delete_if_left(folder)


def _delete_if_left(folder: Path) -> None:
    """Delete an old folder of this user that nobody has locked. Raise `OSError` for anything else.

    Anybody may put something of that name there: neither a FIFO nor a link is opened.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or time.time() - found.st_mtime <= _RECENT_SECONDS:
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)
