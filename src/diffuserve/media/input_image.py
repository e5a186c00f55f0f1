"""Images that requests bring along, as pixels. Files are taken for hostile."""

import hashlib
import io
import os
import stat
import threading
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from PIL import Image, ImageChops, ImageCms, ImageOps, UnidentifiedImageError

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.requests.image_fields import mode_of
from diffuserve.domain.requests.input_image import ImageInput, InputImage, Mode
from diffuserve.media.transparency import flattened

FORMATS = ("PNG", "JPEG", "WEBP")
MAX_INPUT_BYTES = 64 * 1024 * 1024
"""The largest file."""
MAX_INPUT_PIXELS = 64 * 1024 * 1024
"""A smaller bound than Pillow's own: a few hundred megabytes of pixels."""
USUAL_INPUT_PIXELS = 16 * 1024 * 1024
"""What a server reads, unless one of its models draws larger images."""
MAX_SIDE = 16_384

_SEVERAL_VIEWS = "MPO"  # Pillow's name for photos in which a phone stores more than one view
_warnings_lock = threading.Lock()  # filters of warnings belong to the whole process


def load_input(field: str, value: ImageInput) -> InputImage:
    """Return an image with its pixels, in `mode_of` the field; a string is the path of a file.

    Raise `InvalidParams`, which names `field`, for a file that cannot be read or is no image.
    """
    if isinstance(value, InputImage):
        return _checked(field, value)
    with _regular_file(field, value) as file:
        return read_image(field, file, mode_of(field), name=value)


def read_image(
    field: str,
    file: IO[bytes],
    mode: Mode = "RGB",
    name: str = "the file",
    max_pixels: int = MAX_INPUT_PIXELS,
) -> InputImage:
    """Return the pixels of an image file: upright, in sRGB, 8 bits for each color, on white.

    A mask's levels are taken as they are. Raise `InvalidParams`, which names `field` and the file's `name`,
    for what is no image of `FORMATS`, is animated, broken, or has more than `max_pixels`.
    """
    with _opened(field, file, name, max_pixels) as image:
        return input_image(image, mode)


def read_transparency(
    field: str, file: IO[bytes], name: str = "the file", max_pixels: int = MAX_INPUT_PIXELS
) -> InputImage:
    """Return a mask that is white where an image file is transparent; one without transparency, as it is.

    Raise `InvalidParams` as `read_image` does, and for a file that has transparency but is opaque everywhere.
    """
    with _opened(field, file, name, max_pixels) as image:
        if not image.has_transparency_data:
            return input_image(image, "L")
        mask = ImageChops.invert(image.convert("RGBA").getchannel("A"))
    if mask.getbbox() is None:
        raise InvalidParams(field, name, "is opaque everywhere; make transparent what is to change")
    return input_image(mask, "L")


def input_image(image: Image.Image, mode: Mode = "RGB") -> InputImage:
    """Return an image's pixels as an input; its id is their hash."""
    flat = _flat(image)
    converted = (flat if mode == "L" else _in_srgb(flat)).convert(mode)
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
    # Of photos runs alone are as small as with a search for repetitions, and take less time.
    as_image(source).save(buffer, format="PNG", compress_level=1, compress_type=zlib.Z_RLE)
    return buffer.getvalue()


def _checked(field: str, image: InputImage) -> InputImage:
    """Return an image if it has all of its pixels."""
    expected = image.num_pixels * len(image.mode)
    if image.pixels is None or len(image.pixels) != expected:
        found = "none" if image.pixels is None else f"{len(image.pixels):,}"
        raise InvalidParams(field, image.id, f"needs {expected:,} bytes of pixels, not {found}")
    return image


@contextmanager
def _regular_file(field: str, path: str) -> Iterator[IO[bytes]]:
    """Open a file, without waiting for the writer of a pipe."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        reason = getattr(error, "strerror", None) or error
        raise InvalidParams(
            field, path, f"cannot be read ({reason}); give the path of an image file"
        ) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidParams(field, path, "is no regular file; give the path of an image file")
    with os.fdopen(descriptor, "rb") as file:
        yield file


@contextmanager
def _opened(field: str, file: IO[bytes], name: str, max_pixels: int) -> Iterator[Image.Image]:
    """Decode an image file, upright; what is raised while it is in use is the file's fault as well."""
    if file.seek(0, io.SEEK_END) > MAX_INPUT_BYTES:
        raise InvalidParams(field, name, f"is too large; send at most {MAX_INPUT_BYTES:,} bytes")
    try:
        with _warnings_lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(file, formats=FORMATS) as image:
                _check(field, name, image, max_pixels)
                image.load()
                yield _upright(image)
    except (InvalidParams, MemoryError):
        raise
    except Image.DecompressionBombError as error:
        raise _too_large(field, name, max_pixels) from error
    except UnidentifiedImageError as error:
        raise InvalidParams(field, name, f"is no image; send {', '.join(FORMATS)}") from error
    except Exception as error:  # decoders raise almost anything for a file that was made up
        raise InvalidParams(field, name, f"is a broken image file ({error}); send it again") from error


def _check(field: str, name: str, image: Image.Image, max_pixels: int) -> None:
    if max(image.size) > MAX_SIDE or image.width * image.height > max_pixels:
        raise _too_large(field, name, max_pixels)
    if getattr(image, "n_frames", 1) > 1 and image.format != _SEVERAL_VIEWS:
        raise InvalidParams(field, name, "is animated; send a single image")


def _too_large(field: str, name: str, max_pixels: int) -> InvalidParams:
    limits = f"{max_pixels:,} pixels and {MAX_SIDE:,} a side"
    return InvalidParams(field, name, f"is too large; send at most {limits}")


def _upright(image: Image.Image) -> Image.Image:
    """Return an image turned as its EXIF says; EXIF that cannot be read says nothing."""
    with suppress(Exception):
        return ImageOps.exif_transpose(image)
    return image


def _flat(image: Image.Image) -> Image.Image:
    """Return an image of 8 bits a color without transparency, which becomes white."""
    if image.mode.startswith("I") or image.mode == "F":  # 16 and 32 bits; Pillow would clip them
        return image.convert("I").point(lambda level: level * (1 / 257) + 0.5).convert("L")
    if not image.has_transparency_data:
        return image.convert("RGB") if image.mode == "P" else image
    flat = flattened(image)
    flat.info["icc_profile"] = image.info.get("icc_profile")
    return flat


def _in_srgb(image: Image.Image) -> Image.Image:
    """Return an image's colors as its ICC profile means them; a broken profile means nothing."""
    profile = image.info.get("icc_profile")
    if not profile or image.mode not in ("RGB", "CMYK", "L"):
        return image
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if "srgb" in ImageCms.getProfileDescription(source).lower():
            return image
        converted = ImageCms.profileToProfile(image, source, ImageCms.createProfile("sRGB"), outputMode="RGB")
    except (ImageCms.PyCMSError, OSError, ValueError):
        return image
    return image if converted is None else converted
