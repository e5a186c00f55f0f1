"""The console of a command's results, on stdout."""

from rich.console import Console

_WIDE = 10_000  # columns: nothing is wrapped


def results() -> Console:
    """Return a console for stdout; what is piped is neither wrapped nor coloured."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDE)
