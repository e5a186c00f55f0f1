"""The state of something that a command waits for."""

import time
from types import TracebackType
from typing import Self

from rich.text import Text

from diffuserve.cli.display.console import Console

_REPEAT_SECONDS = 10.0


class Waiting:
    """Shows a state on stderr: redrawn on a terminal, elsewhere printed every ten seconds if it changed."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._status = self._console.status("", spinner="dots")
        self._printed = ""
        self._printed_at = -_REPEAT_SECONDS

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status.stop()

    def show(self, state: str) -> None:
        """Show the state now."""
        if self._console.is_terminal:
            self._status.update(Text(state))
        elif state != self._printed and time.monotonic() - self._printed_at >= _REPEAT_SECONDS:
            self._console.print(state)
            self._printed, self._printed_at = state, time.monotonic()
