"""Writing the images and sounds of finished requests, and a table of their timings."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL.Image import Image
from rich.table import Table

from diffuserve.cli.display.console import Console
from diffuserve.cli.images.clip_writer import ClipWriter
from diffuserve.cli.images.destination import Destination
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.outputs import FrameChunk, GenerationResult
from diffuserve.engine_process.output.image_output import ImageOutput
from diffuserve.media.contact_sheet import contact_sheet
from diffuserve.media.image_file import save_image
from diffuserve.media.waveform import waveform


class ImageWriter:
    """Writer of the images, clips and sounds that pass their filters. Used by one thread."""

    def __init__(
        self,
        destination: Destination,
        image_output: ImageOutput,
        num_images: int,
        console: Console | None = None,
    ) -> None:
        self._destination = destination
        self._image_output = image_output
        self._clips = ClipWriter(
            destination.folder,
            image_output,
            destination.suffix.lower().removeprefix("."),
            console or Console(stderr=True),
        )
        self._numbers = itertools.count(1) if num_images > 1 else itertools.repeat(None)
        self.paths: dict[int, list[Path]] = {}
        destination.folder.mkdir(parents=True, exist_ok=True)

    def add_frames(self, index: int, params: GenerationParams, chunk: FrameChunk) -> None:
        """Write the next frames of the clips of request `index`."""
        self._clips.add(index, params, chunk)

    def close(self) -> None:
        """Remove what is left of clips that were not finished."""
        self._clips.close()

    def save(self, index: int, result: GenerationResult) -> GenerationResult:
        """Write the images; return the result with those that passed. Raise `OutputBlocked` before that.

        Clips are complete then, and only take their names.
        """
        if result.sounds and not result.frames:
            return self._save_sounds(index, result)
        if result.params.num_frames != 1:
            for i, media in enumerate(result.media):  # what was not streamed
                chunk = FrameChunk(i, 0, media.frames, is_last=True, sound=media.sound)
                self._clips.add(index, result.params, chunk)
            self.paths[index] = self._clips.finish(
                index, lambda named: self._destination.path(named, next(self._numbers))
            )
            return replace(result, warnings=(*result.warnings, *self._clips.warnings[index]))
        passed = self._image_output.screened(result)
        for i, image in enumerate(passed.images):
            origin = self._image_output.origin(passed.params, i)
            seed = self._image_output.seed_of(passed, i)
            path = self._destination.path(origin or _named_after(passed, seed), next(self._numbers))
            save_image(image, path, origin, passed.params.output_quality)
            self.paths.setdefault(index, []).append(path)
        return passed

    def _save_sounds(self, index: int, result: GenerationResult) -> GenerationResult:
        from diffuserve.engine_process.output.sound_output import screened_sounds
        from diffuserve.media.sound_writer import save_sound

        screened_sounds(self._image_output, result)
        for i, sound in enumerate(result.sounds):
            origin = self._image_output.origin(result.params, i)
            path = self._destination.path(
                origin or _named_after(result, result.seed + i), next(self._numbers)
            )
            save_sound(sound, path, origin)
            self.paths.setdefault(index, []).append(path)
        return result

    def save_sheet(self, results: Sequence[GenerationResult]) -> Path:
        """Write a contact sheet of all images beside them; return its path."""
        name = f"{self._destination.stem or 'contact_sheet'}{'-grid' if self._destination.stem else ''}"
        path = self._destination.folder / f"{name}.png"
        images: list[tuple[Image, str]] = [
            (image, f"{result.params.prompt} ({size_of(result.params)})")
            for result in results
            for image in _pictures(result)
        ]
        images += self._clips.captioned_posters()
        save_image(contact_sheet(images), path, {})
        return path


def _pictures(result: GenerationResult) -> list[Image]:
    """Return the images of a result, or pictures of its sounds."""
    return result.images or [waveform(sound) for sound in result.sounds]


def size_of(params: GenerationParams) -> str:
    """Return the size of what a request, whose defaults are filled in, has made."""
    if params.width is None:
        return f"{params.seconds:g} s"
    return f"{params.width}x{params.height}{f'x{params.num_frames}' if params.num_frames != 1 else ''}"


def _named_after(result: GenerationResult, seed: int) -> dict[str, Any]:
    return {"prompt": result.params.prompt, "seed": seed}


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
        size, steps = size_of(params), str(params.num_inference_steps)
        table.add_row(params.prompt, size, steps, *(f"{value:.2f}" for value in seconds))
    console.print(table)
