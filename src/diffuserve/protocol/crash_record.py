"""A file that names the jobs an engine is working on, for its agent to read after a crash."""

import json
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

_NAME = "crash-record.json"


class CrashRecord:
    """Keeps the attempts that each thread of the engine works on, or worked on last.

    The file is not synced: written bytes survive the process, and are lost only if the machine fails.
    """

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / _NAME, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._attempts: dict[int, list[str]] = {}
        self._lock = threading.Lock()

    def note(self, attempts: Iterable[str]) -> None:
        """Record that the calling thread now works on `attempts`, which are usually the same as before."""
        current, thread = sorted(attempts), threading.get_ident()
        if self._attempts.get(thread) == current:
            return
        with self._lock:
            self._attempts[thread] = current
            text = json.dumps(self._attempts).encode()
            os.pwrite(self._file, text, 0)
            os.ftruncate(self._file, len(text))


def read_crash_record(folder: Path) -> frozenset[str]:
    """Return the attempts that a dead engine was working on.

    The set is empty if the engine never started to work, or died while it wrote the file.
    """
    try:
        by_thread: Mapping[str, list[str]] = json.loads((folder / _NAME).read_text())
    except (OSError, ValueError):
        return frozenset()
    return frozenset(attempt for attempts in by_thread.values() for attempt in attempts)
