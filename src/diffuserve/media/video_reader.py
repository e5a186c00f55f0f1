"""Frames of finished clips."""

from collections.abc import Iterator
from pathlib import Path

import av
from PIL import Image


def read_frames(path: Path) -> Iterator[Image.Image]:
    """Yield the frames of a clip's file, RGB. Raise `av.error.FFmpegError` if it is none."""
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            yield Image.fromarray(frame.to_ndarray(format="rgb24"))
