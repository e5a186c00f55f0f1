"""Animated GIF and WebP, for small clips: their files are written once all frames are there."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from PIL import Image

from diffuserve.media.image_file import exif_and_xmp

_GIF_COLORS = 256
_PALETTE_FRAMES = 8  # frames that the palette of a GIF is chosen from
_WEBP_OPTIONS = {"quality": 85, "method": 2}


class AnimationEncoder:
    """An encoder that holds the clip's frames, which `VIDEO_FORMATS` bounds, and plays them forever."""

    def __init__(self, path: Path, image_format: str, fps: int, parameters: Mapping[str, Any]) -> None:
        self._path, self._format, self._fps = path, image_format, fps
        self._parameters = parameters
        self._frames: list[Image.Image] = []

    def add(self, frame: Image.Image) -> None:
        self._frames.append(frame.convert("RGB"))

    def finish(self) -> None:
        is_gif = self._format == "gif"
        frames = _of_one_palette(self._frames) if is_gif else self._frames
        options = _gif_comment(self._parameters) if is_gif else _webp_options(self._parameters)
        frames[0].save(
            self._path,
            format=self._format.upper(),
            save_all=True,
            append_images=frames[1:],
            duration=_durations(len(frames), self._fps, unit=10 if is_gif else 1),
            loop=0,
            **options,
        )
        self.close()

    def close(self) -> None:
        self._frames.clear()


def _durations(num_frames: int, fps: int, unit: int) -> list[int]:
    """Return each frame's milliseconds in whole units, chosen so that no frame is late by a unit."""
    ends = [round(number * 1000 / fps / unit) * unit for number in range(num_frames + 1)]
    return [end - start for start, end in pairwise(ends)]


def _of_one_palette(frames: Sequence[Image.Image]) -> list[Image.Image]:
    """Return frames in the 256 colors that suit them all, so that nothing flickers."""
    step = -(-len(frames) // _PALETTE_FRAMES)
    chosen = frames[::step]
    width, height = chosen[0].size
    strip = Image.new("RGB", (width, height * len(chosen)))
    for number, frame in enumerate(chosen):
        strip.paste(frame, (0, number * height))
    palette = strip.quantize(_GIF_COLORS)
    return [frame.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG) for frame in frames]


def _gif_comment(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {"comment": json.dumps(parameters).encode()} if parameters else {}


def _webp_options(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {**_WEBP_OPTIONS, **(exif_and_xmp(parameters) if parameters else {})}
