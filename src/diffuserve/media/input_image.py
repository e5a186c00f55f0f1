"""Images that requests bring along, as pixels."""

import hashlib
import io
import warnings
from pathlib import Path
from typing import IO, Literal

from PIL import Image, ImageOps, UnidentifiedImageError

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.input_image import ImageInput, InputImage

FORMATS = ("PNG", "JPEG", "WEBP")
MAX_INPUT_PIXELS = 64 * 1024 * 1024
"""A smaller bound than Pillow's own: a few hundred megabytes of pixels."""
MAX_SIDE = 16_384

Mode = Literal["RGB", "L"]


def load_input(field: str, value: ImageInput, mode: Mode = "RGB") -> InputImage:
    """Return an image with its pixels; a string is the path of a file.

    Raise `InvalidParams`, which names `field`, for a file that cannot be read or is no image.
    """
    if isinstance(value, InputImage):
        return value
    try:
        with Path(value).open("rb") as file:
            return read_image(field, file, mode, name=value)
    except OSError as error:
        raise InvalidParams(field, value, f"cannot be read: {error.strerror or error}") from error


def read_image(field: str, file: IO[bytes], mode: Mode = "RGB", name: str = "the file") -> InputImage:
    """Return the pixels of an image file, upright, without transparency and with 8 bits for each colour.

    Raise `InvalidParams`, which names `field` and the file's `name`, for what is no image of `FORMATS`, is
    animated, broken, or too large.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=FORMATS) as image:
                _check(field, name, image)
                return input_image(_upright(image), mode)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InvalidParams(field, name, _too_large()) from error
    except UnidentifiedImageError as error:
        raise InvalidParams(field, name, f"is no image; send {', '.join(FORMATS)}") from error
    except (OSError, SyntaxError, ValueError) as error:
        if isinstance(error, InvalidParams):
            raise
        raise InvalidParams(field, name, f"is a broken image file ({error}); send it again") from error


def input_image(image: Image.Image, mode: Mode = "RGB") -> InputImage:
    """Return an image's pixels as an input; its id is their hash."""
    converted = _flat(image).convert(mode)
    pixels = converted.tobytes()
    digest = hashlib.sha256(f"{mode} {converted.width}x{converted.height} ".encode() + pixels)
    return InputImage(digest.hexdigest(), converted.width, converted.height, mode, pixels)


def as_image(source: InputImage) -> Image.Image:
    """Return an input's pixels as an image."""
    assert source.pixels is not None
    return Image.frombytes(source.mode, (source.width, source.height), source.pixels)


def png_bytes(source: InputImage) -> bytes:
    """Return an input as a PNG file."""
    buffer = io.BytesIO()
    as_image(source).save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()


def _check(field: str, name: str, image: Image.Image) -> None:
    if max(image.size) > MAX_SIDE or image.width * image.height > MAX_INPUT_PIXELS:
        raise InvalidParams(field, name, _too_large())
    if getattr(image, "n_frames", 1) > 1:
        raise InvalidParams(field, name, "is animated; send a single image")


def _too_large() -> str:
    return f"is too large; send at most {MAX_INPUT_PIXELS:,} pixels and {MAX_SIDE:,} a side"


def _upright(image: Image.Image) -> Image.Image:
    image.load()
    turned = ImageOps.exif_transpose(image)
    return image if turned is None else turned


def _flat(image: Image.Image) -> Image.Image:
    """Return an image of 8 bits a colour without transparency, which becomes white."""
    if image.mode.startswith("I") or image.mode == "F":  # 16 and 32 bits; Pillow would clip them
        image = image.convert("I").point(lambda level: level / 257).convert("L")
    if not image.has_transparency_data:
        return image
    opaque = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", opaque.size, "white"), opaque).convert("RGB")
