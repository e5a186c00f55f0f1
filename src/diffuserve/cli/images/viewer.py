"""The program of this machine that shows images."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from diffuserve.cli.display.console import Console

_START_SECONDS = 3.0  # a program that cannot open a file ends sooner, and a viewer may stay


def open_images(paths: Sequence[Path], console: Console) -> None:
    """Open each image with the platform's viewer; say so where there is none, since the image is there."""
    viewer = shutil.which("open" if sys.platform == "darwin" else "xdg-open")
    for path in paths:
        if viewer is None or not _opens(viewer, path):
            told = f"no program to open {path} with was found here; open it yourself"
            console.print(told, style="yellow", highlight=False, soft_wrap=True)
            return


def _opens(viewer: str, path: Path) -> bool:
    quiet = subprocess.DEVNULL  # it reports every browser that it does not find
    process = subprocess.Popen([viewer, str(path)], stdin=quiet, stdout=quiet, stderr=quiet)  # noqa: S603
    try:
        return process.wait(_START_SECONDS) == 0
    except subprocess.TimeoutExpired:
        return True
