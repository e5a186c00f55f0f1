"""The program of this machine that shows images."""

from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console


def open_images(paths: Sequence[Path], console: Console) -> None:
    """Open each image with the platform's viewer; say so where there is none, since the image is there."""
    for path in paths:
        if typer.launch(str(path)) != 0:
            console.print(
                f"no program to open {path} with was found here (`xdg-open` on Linux); open it yourself",
                style="yellow",
                markup=False,
                soft_wrap=True,
            )
            return
