"""Container formats of clips, and which clips each can hold. Importing this file loads no encoder."""

from collections.abc import Mapping
from dataclasses import dataclass

from diffuserve.domain.errors import InvalidParams

_LARGEST_ANIMATION = 16 * 1024 * 1024
"""Frames × pixels of a GIF or an animated WebP: their encoders hold all frames, and the files are large."""


@dataclass(frozen=True, kw_only=True)
class VideoFormat:
    """A container format. `max_pixels` bounds frames × width × height; `None` means no bound."""

    media_type: str
    suffix: str
    description: str
    min_side: int = 2
    max_fps: int = 120
    max_pixels: int | None = None


DEFAULT_VIDEO_FORMAT = "mp4"
VIDEO_FORMATS: Mapping[str, VideoFormat] = {
    "mp4": VideoFormat(media_type="video/mp4", suffix=".mp4", description="H.264"),
    "webm": VideoFormat(media_type="video/webm", suffix=".webm", description="AV1", min_side=64),
    "gif": VideoFormat(
        media_type="image/gif",
        suffix=".gif",
        description="animated GIF",
        max_fps=50,
        max_pixels=_LARGEST_ANIMATION,
    ),
    "webp": VideoFormat(
        media_type="image/webp", suffix=".webp", description="animated WebP", max_pixels=_LARGEST_ANIMATION
    ),
}
"""The formats by the names that requests give them, and in their order of preference."""


def check_clip(output_format: str, width: int, height: int, num_frames: int, fps: int) -> None:
    """Raise `InvalidParams`, which names `output_format`, if a clip cannot be a file of that format."""
    known = VIDEO_FORMATS.get(output_format)
    if known is None:
        raise InvalidParams("output_format", output_format, f"a clip is one of {', '.join(VIDEO_FORMATS)}")
    if min(width, height) < known.min_side:
        remedy = f"holds clips from {known.min_side} pixels a side, not {width}x{height}; take mp4"
        raise InvalidParams("output_format", output_format, remedy)
    if fps > known.max_fps:
        remedy = f"shows at most {known.max_fps} frames a second, not {fps}; take mp4, or a smaller fps"
        raise InvalidParams("output_format", output_format, remedy)
    _check_pixels(output_format, width * height, num_frames)


def _check_pixels(output_format: str, frame_pixels: int, num_frames: int) -> None:
    largest = VIDEO_FORMATS[output_format].max_pixels
    if largest is None or frame_pixels * num_frames <= largest:
        return
    raise InvalidParams(
        "output_format",
        output_format,
        f"is for small clips of at most {largest:,} pixels in all frames together, not "
        f"{frame_pixels * num_frames:,}; take mp4, or at most {largest // frame_pixels} frames of this size",
    )
