"""The display of a loading model: one line that changes on a terminal, or a few lines elsewhere."""

import time

from diffuserve.cli.display.console import Console
from diffuserve.domain.text.visible_text import visible
from diffuserve.domain.workers.worker import LoadProgress

_REPEAT_SECONDS = 10.0  # between lines about the same phase, where lines cannot change
_START = LoadProgress(phase="starting")


class LoadDisplay:
    """Shows the progress of loading a model.

    The line on a terminal leaves the cursor at its start, so that the worker's log overwrites it.
    """

    def __init__(self, console: Console, model: str, seconds_before: float = 0.0) -> None:
        """Show that loading has begun, `seconds_before` now."""
        self._console, self._model = console, model
        self._started_at = time.monotonic() - seconds_before
        self._shown: LoadProgress | None = None
        self._shown_at = 0.0
        self.show(_START)

    @property
    def seconds(self) -> float:
        """Seconds since loading began."""
        return time.monotonic() - self._started_at

    def show(self, progress: LoadProgress | None) -> None:
        """Show the progress, if it is news."""
        progress = progress or self._shown or _START
        if self._console.is_terminal:
            self._write(f"loading {self._model} … {progress} · {self.seconds:.0f} s", "\r")
        elif self._is_news(progress):
            self._write(f"loading {self._model} … {progress}", "\n")
            self._shown_at = time.monotonic()
        self._shown = progress

    def end(self) -> None:
        """Remove the line that changes."""
        if self._console.is_terminal:
            self._write("", "\r")

    def _is_news(self, progress: LoadProgress) -> bool:
        if self._shown is None or progress.phase != self._shown.phase:
            return True
        return progress != self._shown and time.monotonic() - self._shown_at >= _REPEAT_SECONDS

    def _write(self, text: str, end: str) -> None:
        clear = "\x1b[2K" if self._console.is_terminal else ""
        self._console.file.write(f"{clear}{visible(text)[: self._console.width - 1]}{end}")
        self._console.file.flush()
