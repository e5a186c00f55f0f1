"""Picture files that carry the parameters they were drawn with."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import ExifTags, Image
from PIL.PngImagePlugin import PngInfo

SUFFIXES = (".png", ".webp", ".jpg", ".jpeg")
_KEY = "diffuserve"  # of the PNG text chunk; other formats carry the same JSON in EXIF

_PNG_COMPRESS_LEVEL = 1
"""A quarter of the default level's time, for files a sixth larger: the core is better spent on pictures."""


def save_picture(image: Image.Image, path: Path, parameters: Mapping[str, Any]) -> None:
    """Write `image` in the format of the path's suffix, whole or not at all."""
    text = json.dumps(parameters, ensure_ascii=False)
    partial = path.with_name(f".{path.name}.partial")
    image_format = Image.registered_extensions()[path.suffix.lower()]
    options: dict[str, Any] = {}
    if image_format == "PNG":
        info = PngInfo()
        info.add_itxt(_KEY, text)
        options |= {"pnginfo": info, "compress_level": _PNG_COMPRESS_LEVEL}
    else:
        exif = Image.Exif()
        exif[ExifTags.Base.ImageDescription] = json.dumps(parameters)  # EXIF text is ASCII
        options |= {"exif": exif, "quality": 95}
    image.save(partial, format=image_format, **options)
    os.replace(partial, path)


def read_parameters(path: Path) -> dict[str, Any]:
    """The parameters that a picture carries; empty for a file of another origin."""
    try:
        with Image.open(path) as image:
            image.load()
            text = image.info.get(_KEY) or image.getexif().get(ExifTags.Base.ImageDescription)
        content = json.loads(text or "{}")
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
