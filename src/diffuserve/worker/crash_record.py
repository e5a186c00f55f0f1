"""What an engine was at when it died: a file that it writes before it works, and that its agent reads."""

import json
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

_NAME = "black-box.json"


class CrashRecord:
    """The attempts that each of its threads is at, or was at last.

    Not synced: what a process has written outlives it, and only a machine's death takes it away.
    """

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / _NAME, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._at: dict[int, list[str]] = {}
        self._writing = threading.Lock()

    def note(self, attempts: Iterable[str]) -> None:
        """What this thread is at from now on; often the same as before."""
        now, thread = sorted(attempts), threading.get_ident()
        if self._at.get(thread) == now:
            return
        with self._writing:
            self._at[thread] = now
            text = json.dumps(self._at).encode()
            os.pwrite(self._file, text, 0)
            os.ftruncate(self._file, len(text))


def read_black_box(folder: Path) -> frozenset[str]:
    """The attempts that a dead engine was at; none where it never began, or died while it wrote."""
    try:
        work: Mapping[str, list[str]] = json.loads((folder / _NAME).read_text())
    except (OSError, ValueError):
        return frozenset()
    return frozenset(attempt for attempts in work.values() for attempt in attempts)
