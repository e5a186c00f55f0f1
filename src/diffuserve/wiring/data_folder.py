"""Lock of the data folder, which serves one server at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from diffuserve.domain.errors import InvalidParams
from diffuserve.private_files import Access, make_private_folder, refused_if_unusable

_LOCK: Final = "server.lock"


@contextmanager
def locked(folder: Path, access: Access = Access.OWNER) -> Iterator[None]:
    """Hold the folder until the block, or this process, ends.

    Raise `InvalidParams` if another server holds it, if this user cannot use it, or if others than `access`
    allows can enter it.

    The kernel owns the lock, so a killed server leaves nothing to clean up.
    """
    make_private_folder(folder, access)
    with refused_if_unusable(folder):
        lock = (folder / _LOCK).open("a+", encoding="utf-8")
    with lock as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise InvalidParams(
                "data_dir",
                str(folder),
                f"another server (process {holder}) is running on it; stop it, or give another --data-dir",
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def holder_of(folder: Path) -> int | None:
    """Return the process whose server holds the folder, `None` if there is none.

    Raise `InvalidParams` if this user cannot use the folder.
    """
    with refused_if_unusable(folder):
        if not (folder / _LOCK).is_file():
            return None
        with (folder / _LOCK).open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read())
    return None
