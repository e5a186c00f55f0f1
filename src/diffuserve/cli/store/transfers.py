"""Progress of large files on their way: bars on a terminal, and one line for each elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from diffuserve.cli.display.console import Console, text_column
from diffuserve.cli.display.sizes import human_bytes


@dataclass(frozen=True)
class Transfers:
    """Bars of what is shown together."""

    _progress: Progress
    _console: Console

    def begin(self, title: str, num_bytes: int, done: int = 0) -> Callable[[int], None]:
        """Show a transfer; what is returned receives the bytes as they come."""
        if not self._console.is_terminal:
            self._console.print(f"{title}: {human_bytes(num_bytes)}")
        return partial(
            self._progress.advance, self._progress.add_task(title, total=num_bytes, completed=done)
        )


@contextmanager
def transfers(console: Console) -> Iterator[Transfers]:
    """Show transfers within the block."""
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(compact=True))
    text = text_column("{task.description}")
    with Progress(text, *columns, console=console, disable=not console.is_terminal) as progress:
        yield Transfers(progress, console)
