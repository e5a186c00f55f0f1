"""Lines of text on stdout and stderr, for commands that need no console."""

from pathlib import Path

import typer

from diffuserve.domain.text.visible_text import visible


def echo(text: str | Path = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text from any source, without control characters that a terminal would act on."""
    typer.echo(visible(str(text)), err=err, nl=nl)  # noqa: TID251 (the one place that does)
