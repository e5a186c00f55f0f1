"""Where pictures go, and what is said about them."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from PIL.Image import Image
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from diffuserve.cli.loading import slug
from diffuserve.engine.outputs import GenerationResult
from diffuserve.media.contact_sheet import contact_sheet
from diffuserve.media.picture_file import SUFFIXES, read_parameters, save_picture
from diffuserve.version import __version__


@dataclass(frozen=True)
class Destination:
    """A folder, or a single file name that several pictures are numbered after."""

    folder: Path
    stem: str | None
    suffix: str

    @classmethod
    def parse(cls, output: Path) -> "Destination":
        """`output` is a file if it has a picture's suffix, else a folder."""
        if output.suffix.lower() in SUFFIXES:
            return cls(output.parent, output.stem, output.suffix)
        if output.suffix and not output.is_dir():
            known = ", ".join(SUFFIXES)
            raise typer.BadParameter(f"{output}: unknown kind of picture {output.suffix!r}; known: {known}")
        return cls(output, None, ".png")

    def path(self, parameters: Mapping[str, Any], number: int | None) -> Path:
        """For the picture of these parameters; `number` counts them where there are several.

        A named file is replaced, as with any tool's `-o`; one named after its prompt only by the
        same picture drawn again.
        """
        if self.stem is not None:
            stem = self.stem if number is None else f"{self.stem}-{number}"
            return self.folder / f"{stem}{self.suffix}"
        name = f"{slug(parameters['prompt'])}-{parameters['seed']}{self.suffix}"
        return _free(self.folder / name, parameters)


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


def _free(path: Path, parameters: Mapping[str, Any]) -> Path:
    """The path, numbered if another picture is there."""
    candidate, number = path, 2
    while candidate.exists() and read_parameters(candidate) != parameters:
        candidate, number = path.with_stem(f"{path.stem}-{number}"), number + 1
    return candidate
