"""The last frame of a clip, from its file."""

import io

from PIL import Image, ImageSequence

from diffuserve.media.video_file import VIDEO_FORMATS

_STILLS = frozenset({VIDEO_FORMATS["gif"].media_type, VIDEO_FORMATS["webp"].media_type})


def last_frame(content: bytes, media_type: str) -> bytes:
    """Return the last frame as a PNG file.

    Raise `ModuleNotFoundError` without PyAV, which other files than GIF and WebP need, and `ValueError` or
    `OSError` for what is no clip.
    """
    file = io.BytesIO()
    _image(content, media_type).convert("RGB").save(file, "PNG")
    return file.getvalue()


def _image(content: bytes, media_type: str) -> Image.Image:
    last: Image.Image | None = None
    if media_type in _STILLS:
        with Image.open(io.BytesIO(content)) as opened:
            for frame in ImageSequence.Iterator(opened):
                last = frame.copy()
    else:
        import av

        with av.open(io.BytesIO(content), "r") as container:
            for shown in container.decode(video=0):
                newest = shown
            last = Image.fromarray(newest.to_ndarray(format="rgb24"))
    if last is None:
        raise ValueError("has no frame")
    return last
