"""Previews of a job that is being generated: in a file beside the output, and in the terminal."""

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from diffuserve.cli.display.console import Console
from diffuserve.cli.images.destination import Destination
from diffuserve.cli.images.inline_images import show_image
from diffuserve.domain.resources.job import JobResource


def preview_path(destination: Destination | None, job_id: str) -> Path:
    """Return the file for the previews of a job: beside its image, or else named after its id."""
    if destination is None:
        return Path(f"{job_id}-preview.png")
    return destination.folder / f"{destination.stem or job_id}-preview.png"


class Previews:
    """Writer of the previews of one job: each replaces the one before in its file."""

    def __init__(self, job: JobResource, path: Path, console: Console) -> None:
        self._size = int(job.input["width"]), int(job.input["height"])
        self._is_strip = int(job.input.get("num_frames") or 1) > 1
        self._path = path
        self._console = console
        self._num_shown = 0

    def show(self, event: Mapping[str, Any]) -> None:
        """Write a preview, and show it where the terminal can; of several images those of the first."""
        if event.get("image"):
            return
        with Image.open(io.BytesIO(base64.b64decode(event["b64"]))) as opened:
            preview = opened.convert("RGB").resize(self._size_of(opened), Image.Resampling.BICUBIC)
        self._num_shown += 1
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_name(f".{self._path.name}.part")
        preview.save(unfinished, "PNG")
        unfinished.replace(self._path)  # a viewer that follows the file never reads half of one
        show_image(self._console, preview)
        self._console.print(f"preview {self._num_shown}: {self._path}", highlight=False)

    def _size_of(self, preview: Image.Image) -> tuple[int, int]:
        """Return the size in which a preview is shown: the image's, or of a strip of frames their height."""
        if not self._is_strip:
            return self._size
        height = self._size[1]
        return round(preview.width * height / preview.height), height
