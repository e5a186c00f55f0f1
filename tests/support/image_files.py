"""Image files that clients send, good and bad."""

import io
import struct
import zlib
from typing import Any

from PIL import ExifTags, Image

RED, BLUE = (255, 0, 0), (0, 0, 255)


def file_of(image: Image.Image, file_format: str = "PNG", **options: Any) -> bytes:
    """Return an image as a file."""
    file = io.BytesIO()
    image.save(file, format=file_format, **options)
    return file.getvalue()


def image_in(file: bytes) -> Image.Image:
    """Return the image in a file."""
    with Image.open(io.BytesIO(file)) as image:
        image.load()
        return image


def png(width: int = 64, height: int = 48, color: tuple[int, int, int] = RED) -> bytes:
    return file_of(Image.new("RGB", (width, height), color))


def turned_jpeg() -> bytes:
    """Return a photo of 64x48 that its EXIF turns upright: its left is red then, its right blue."""
    upright = Image.new("RGB", (48, 64), RED)
    upright.paste(BLUE, (24, 0, 48, 64))
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    exif[ExifTags.Base.Artist] = "somebody"
    return file_of(upright.rotate(90, expand=True), "JPEG", quality=95, exif=exif)


def sixteen_bit_png() -> bytes:
    return file_of(Image.frombytes("I;16", (64, 48), struct.pack("<H", 200 * 257) * (64 * 48)))


def animated_webp() -> bytes:
    frames = [Image.new("RGB", (64, 48), color) for color in (RED, BLUE)]
    return file_of(frames[0], "WEBP", save_all=True, append_images=frames[1:], duration=100)


def bomb(side: int = 12_000) -> bytes:
    """Return a small PNG file that unpacks to `side` rows of `side` pixels."""
    row = b"\0" * (side + 1)
    packer = zlib.compressobj(strategy=zlib.Z_RLE)  # the quickest for what is all the same
    rows = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    chunks = (_chunk(b"IHDR", header), _chunk(b"IDAT", rows), _chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>'
HTML = b"<!doctype html><title>not an image</title>"


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
