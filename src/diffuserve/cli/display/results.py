"""The console of a command's results, on stdout."""

import io
import re
import sys
from collections.abc import Mapping

from rich.text import Text

from diffuserve.cli.display.console import Console

_WIDE = 10_000  # columns: nothing is wrapped
_PADDING = re.compile(r" +(?=\n)")


def results() -> Console:
    """Return a console for stdout; what is piped is neither wrapped nor colored nor padded."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDE, file=_Unpadded())


class _Unpadded(io.StringIO):
    """Stdout without the blanks that end the lines of a table."""

    def write(self, text: str) -> int:
        return sys.stdout.write(_PADDING.sub("", text))

    def flush(self) -> None:
        sys.stdout.flush()


def print_facts(facts: Mapping[str, str]) -> None:
    """Print what is known of one thing: a name and its value a line, further lines of it below."""
    console, width = results(), max(map(len, facts))
    for name, value in facts.items():
        for number, line in enumerate(value.splitlines()):
            label = Text(f"{'' if number else name:<{width}}  ", style="bold")
            console.print(label, line, sep="", soft_wrap=True)  # so that URLs stay whole
