"""Images that show what clips are like: a strip of frames, and an animation of several side by side."""

from collections.abc import Sequence
from io import BytesIO

import numpy as np
from PIL import Image

from checker import Pixels
from motions import ClipScene, Motion

MOTIONS = (Motion.MOVES, Motion.GROWS, Motion.FALLS, Motion.ROTATES)
_STRIP_FRAMES = 9
_ENLARGED = 2
_GAP = 4
_REST = 5  # frames that the last one lasts


def shown(scenes: Sequence[ClipScene]) -> list[int]:
    """Return the indexes of the first scenes of four motions, of objects alone."""
    firsts = {scene.motion: index for index, scene in reversed(list(enumerate(scenes))) if not scene.neighbor}
    return [firsts[motion] for motion in MOTIONS if motion in firsts]


def strip(clips: Sequence[Pixels]) -> Image.Image:
    """Return clips as rows of frames, evenly spaced from the first to the last, with white between them."""
    framed = np.pad(np.stack(clips), ((0, 0), (0, 0), (2, 2), (2, 2), (0, 0)), constant_values=255)
    chosen = np.linspace(0, framed.shape[1] - 1, _STRIP_FRAMES).round().astype(int)
    return Image.fromarray(np.concatenate([np.concatenate(list(clip[chosen]), axis=1) for clip in framed]))


def animation(clips: Sequence[Pixels], fps: int) -> bytes:
    """Return a WebP of clips side by side, twice as large, played for ever; it rests on its last frames."""
    first, *others = (_enlarged(beside) for beside in _side_by_side(clips))
    durations = [1000 // fps] * len(others) + [_REST * 1000 // fps]
    buffer = BytesIO()
    options = {"save_all": True, "append_images": others, "duration": durations, "loop": 0, "quality": 85}
    first.save(buffer, format="WEBP", **options)
    return buffer.getvalue()


def _side_by_side(clips: Sequence[Pixels]) -> Pixels:
    padded = np.pad(np.stack(clips), ((0, 0), (0, 0), (0, 0), (0, _GAP), (0, 0)), constant_values=255)
    return np.asarray(np.concatenate(list(padded), axis=2)[:, :, :-_GAP], dtype=np.uint8)


def _enlarged(frame: Pixels) -> Image.Image:
    """Return the frame with doubled pixels."""
    image = Image.fromarray(frame)
    return image.resize((image.width * _ENLARGED, image.height * _ENLARGED), Image.Resampling.NEAREST)
