"""Locks in the data folder: of the one server that has it for itself, and of those that share it."""

import fcntl
import glob
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TextIO

from diffuserve.domain.errors import InvalidParams
from diffuserve.private_files import Access, make_private_folder, refused_if_unusable

_LOCK: Final = "server.lock"
_SHARED: Final = "servers"  # a file for each, whose name begins with its machine


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
        _sign(file)
        yield


@contextmanager
def shared(folder: Path, access: Access = Access.OWNER) -> Iterator[None]:
    """Note a server of this process among those on the folder until the block, or this process, ends.

    Raise `InvalidParams` as `locked` does, but not for other servers. The file of a killed one stays.
    """
    make_private_folder(folder, access)
    make_private_folder(folder / _SHARED, access)
    path = folder / _SHARED / f"{_machine()}{secrets.token_hex(8)}"  # a process may have several
    with refused_if_unusable(folder):
        note = path.open("a+", encoding="utf-8")
    with note as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # nobody but a reader holds it, for a moment
        _sign(file)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def servers_on(folder: Path) -> list[int]:
    """Return the processes of this machine whose servers use the folder.

    Raise `InvalidParams` if this user cannot use it.
    """
    with refused_if_unusable(folder):
        paths = [folder / _LOCK, *sorted((folder / _SHARED).glob(f"{glob.escape(_machine())}*"))]
        found = {_holder_of(path) for path in paths}
        return sorted(process for process in found if process is not None)


def _machine() -> str:
    """Return the beginning of files of this machine: others may have the folder mounted too."""
    return f"{socket.gethostname()}-"


def _sign(lock: TextIO) -> None:
    """Write this process into a lock that it holds."""
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()


def _holder_of(path: Path) -> int | None:
    """Return the process that holds a lock, `None` if there is none, or it has not signed yet."""
    with suppress(FileNotFoundError), path.open(encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            signed = file.read().strip()
            return int(signed) if signed else None
    return None
