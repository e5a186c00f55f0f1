"""Image files that carry the parameters they were generated with."""

import io
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from PIL import ExifTags, Image
from PIL.PngImagePlugin import PngInfo

from diffuserve.media.file_names import FORMATS
from diffuserve.media.xmp import read_packet, write_packet
from diffuserve.version import __version__

_KEY = "diffuserve"  # name of the PNG text chunk; other formats carry the same JSON in XMP and in EXIF
_TOOL = f"diffuserve {__version__}"

DEFAULT_QUALITY = 95
_PNG_COMPRESS_LEVEL = 1
"""It takes a quarter of the default level's time, for files that are a sixth larger."""
_MAX_EXIF_BYTES = 65_533
"""Limit of a JPEG segment. EXIF text is ASCII, where JSON escapes other characters to 6 or 12 bytes."""


def save_image(
    image: Image.Image, path: Path, parameters: Mapping[str, Any], quality: int | None = None, method: int = 4
) -> None:
    """Write `image` atomically in the format of the path's suffix, one of `FORMATS`.

    Without `parameters` the file carries nothing but the image. `quality` (JPEG and WebP) is in 0…100, and
    `DEFAULT_QUALITY` without one; `method` (WebP) in 0…6, where larger means smaller files and more time.
    """
    partial = path.with_name(f".{path.name}.partial")
    image_format = FORMATS[path.suffix.lower()]
    options = _options(image_format, parameters, quality, method)
    try:
        image.save(partial, format=image_format, **options)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)  # the rest of a failed write


def image_bytes(image: Image.Image, file_format: str, parameters: Mapping[str, Any]) -> bytes:
    """Return the content of the file that `save_image` would write as `file_format`, such as `png`."""
    image_format, buffer = FORMATS[f".{file_format}"], io.BytesIO()
    image.save(buffer, format=image_format, **_options(image_format, parameters))
    return buffer.getvalue()


def _options(
    image_format: str, parameters: Mapping[str, Any], quality: int | None = None, method: int = 4
) -> dict[str, Any]:
    options: dict[str, Any] = {"quality": DEFAULT_QUALITY if quality is None else quality, "method": method}
    if image_format == "PNG":
        options = {"compress_level": _PNG_COMPRESS_LEVEL}
    if parameters:
        options |= _png_text(parameters) if image_format == "PNG" else exif_and_xmp(parameters)
    return options


def _png_text(parameters: Mapping[str, Any]) -> dict[str, Any]:
    info = PngInfo()
    info.add_itxt(_KEY, json.dumps(parameters, ensure_ascii=False))
    return {"pnginfo": info}


def exif_and_xmp(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return options for both, since few programs read both. The longest prompts fit into XMP alone."""
    exif = Image.Exif()
    exif[ExifTags.Base.Software] = _TOOL
    exif[ExifTags.Base.ImageDescription] = json.dumps(parameters)
    packet = write_packet(json.dumps(parameters, ensure_ascii=False), _TOOL)
    fits = len(exif.tobytes()) <= _MAX_EXIF_BYTES
    return {"xmp": packet} | ({"exif": exif} if fits else {})


def read_parameters(path: Path) -> dict[str, Any]:
    """Return the parameters that an image file carries; `{}` if it has none or is no image."""
    try:
        with Image.open(path) as image:
            image.load()
            found = [_parse(text) for text in _texts(image) if text]
    except (OSError, ValueError):
        return {}
    return next((parameters for parameters in found if parameters), {})


def _texts(image: Image.Image) -> Iterator[str | None]:
    """Yield the texts of all places that may hold parameters, the most complete first."""
    packet, comment = image.info.get("xmp"), image.info.get("comment")
    yield image.info.get(_KEY)
    yield read_packet(packet) if isinstance(packet, bytes) else None
    yield comment.decode(errors="replace") if isinstance(comment, bytes) else None  # a GIF's comment
    yield image.getexif().get(ExifTags.Base.ImageDescription)


def _parse(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
