"""The process that keeps a fleet: one for each, which `stop` finds."""

import fcntl
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_state_path

from diffuserve.domain.errors import InvalidParams
from diffuserve.private_files import make_private_folder

_PAUSE_SECONDS = 0.2


def file_of(engine: str, fleet: str) -> Path:
    """Return the file that names the process of a fleet, in the user's own folder of states."""
    return user_state_path("diffuserve") / "fleets" / f"{engine}-{fleet}"


@contextmanager
def held(file: Path) -> Iterator[None]:
    """Hold a fleet until the block, or this process, ends. Raise `InvalidParams` if another one holds it."""
    make_private_folder(file.parent, setting="fleet")
    with file.open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            remedy = f"is kept by {_holder(file)} already; give another --name, or end that one"
            raise InvalidParams("name", file.name, remedy) from None
        lock.truncate(0)
        lock.write(f"{socket.gethostname()} {os.getpid()}\n")
        lock.flush()
        yield


def stop(file: Path) -> None:
    """End the process that holds a fleet, which drains it; return at once if there is none.

    Raise `InvalidParams` if it runs on another machine.
    """
    is_told = False
    while not _is_free(file):
        host, _, pid = _holder(file).partition(" ")
        if host and host != socket.gethostname():
            raise InvalidParams("name", file.name, f"is kept by process {pid} on {host}: stop it there")
        if pid.isdecimal() and not is_told:
            os.kill(int(pid), signal.SIGTERM)
            is_told = True
        time.sleep(_PAUSE_SECONDS)


def _is_free(file: Path) -> bool:
    try:
        with file.open("r", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    return True


def _holder(file: Path) -> str:
    return file.read_text("utf-8").strip()
