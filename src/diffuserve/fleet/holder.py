"""The process that keeps a fleet: one for each, which `stop` finds."""

import fcntl
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from platformdirs import user_state_path

from diffuserve.domain.errors import InvalidParams, ServerUnavailable
from diffuserve.private_files import make_private_folder

_PAUSE_SECONDS = 0.2
_KILL_SECONDS = 10.0


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


def stop(file: Path, seconds: float) -> None:
    """End the process that holds a fleet, which drains it; return at once if there is none.

    One that has not ended after `seconds` is killed: it holds nothing that its successor needs. Raise
    `InvalidParams` if it runs on another machine, and `ServerUnavailable` if not even that ends it.
    """
    for order, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, _KILL_SECONDS)):
        if _has_ended(file, order, patience):
            return
    raise ServerUnavailable(f"{file.name} is kept by {_holder(file)}, which SIGKILL has not ended")


def _has_ended(file: Path, order: signal.Signals, seconds: float) -> bool:
    """Send a signal to the process that holds a fleet, and return whether none holds it after `seconds`."""
    end = time.monotonic() + seconds
    is_told = False
    while not _is_free(file):
        if time.monotonic() > end:
            return False
        if not is_told and (pid := _pid_here(file)) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, order)
            is_told = True
        time.sleep(_PAUSE_SECONDS)
    return True


def _pid_here(file: Path) -> int | None:
    """Return the holder's process id, `None` before it has noted it. Raise `InvalidParams` if not here."""
    host, _, pid = _holder(file).partition(" ")
    if host and host != socket.gethostname():
        raise InvalidParams("name", file.name, f"is kept by process {pid} on {host}: stop it there")
    return int(pid) if pid.isdecimal() else None


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
