"""A folder for one engine's socket and files, which disappears even when nobody is left to delete it."""

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_PREFIX = "diffuserve-worker-"
_YOUNG_SECONDS = 60.0  # its owner may be about to lock it


class PrivateFolder:
    """Locked for as long as its owner lives: the kernel lets go of it even after `kill -9`."""

    def __init__(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock: int | None = os.open(self.path, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def delete(self) -> None:
        """With all that is in it; once more does no harm."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _sweep(root: Path) -> None:
    """Delete what agents left behind that were killed."""
    for folder in root.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another user's, or another sweeper was faster
            if time.time() - folder.stat().st_mtime > _YOUNG_SECONDS:
                _delete_if_unlocked(folder)


def _delete_if_unlocked(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)
