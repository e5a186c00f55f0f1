"""Pictures of finished requests, and what is said about them."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL.Image import Image
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from diffuserve.cli.destination import Destination
from diffuserve.engine.outputs import GenerationResult
from diffuserve.media.contact_sheet import contact_sheet
from diffuserve.media.picture_file import save_picture
from diffuserve.version import __version__


class PictureWriter:
    """Saves the pictures of finished requests. One thread calls it."""

    def __init__(self, destination: Destination, model: str, num_pictures: int) -> None:
        self._destination = destination
        self._model = model
        self._numbers = itertools.count(1) if num_pictures > 1 else itertools.repeat(None)
        self.paths: dict[int, list[Path]] = {}
        destination.folder.mkdir(parents=True, exist_ok=True)

    def save(self, index: int, result: GenerationResult) -> None:
        for i, image in enumerate(result.images):
            parameters = embedded_parameters(result, i, self._model)
            path = self._destination.path(parameters, next(self._numbers))
            save_picture(image, path, parameters)
            self.paths.setdefault(index, []).append(path)

    def save_sheet(self, results: Sequence[GenerationResult]) -> Path:
        """One sheet with every picture, beside them."""
        name = f"{self._destination.stem or 'contact_sheet'}{'-grid' if self._destination.stem else ''}"
        path = self._destination.folder / f"{name}.png"
        pictures: list[tuple[Image, str]] = [
            (image, f"{result.params.prompt} ({result.params.width}x{result.params.height})")
            for result in results
            for image in result.images
        ]
        save_picture(contact_sheet(pictures), path, {})
        return path


def embedded_parameters(result: GenerationResult, picture: int, model: str) -> dict[str, Any]:
    """What draws this one picture again."""
    params = {**result.params.to_dict(), "seed": result.seed + picture, "num_images": 1}
    return {**params, "model": model, "version": __version__}


def print_timings(console: Console, results: Sequence[GenerationResult]) -> None:
    table = Table(box=None, header_style="bold", caption="times in seconds")
    table.add_column("prompt", no_wrap=True, max_width=24)
    for name in ("size", "steps", "queue", "encode", "denoise", "decode", "total"):
        table.add_column(name, justify="right", no_wrap=True)
    for result in results:
        params, timings = result.params, result.timings
        seconds = (
            timings.queue_seconds,
            timings.encode_seconds,
            timings.denoise_seconds,
            timings.decode_seconds,
            timings.total_seconds,
        )
        size, steps = f"{params.width}x{params.height}", str(params.num_inference_steps)
        table.add_row(escape(params.prompt), size, steps, *(f"{value:.2f}" for value in seconds))
    console.print(table)
