"""Files that people send as input images, good and bad."""

import io
import os
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from PIL import ExifTags, Image, ImageCms

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.media import input_image as module
from diffuserve.media.input_image import (
    as_image,
    input_image,
    load_input,
    png_bytes,
    read_image,
    read_transparency,
)

RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)


def two_colors(mode: str = "RGB") -> Image.Image:
    """Return an image of 4x2 pixels, red at the left and blue at the right."""
    image = Image.new("RGB", (4, 2), RED)
    image.paste(BLUE, (2, 0, 4, 2))
    return image.convert(mode)


def file_of(image: Image.Image, file_format: str = "PNG", **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    image.save(file, format=file_format, **options)
    return file


def read(file: io.BytesIO, mode: Any = "RGB") -> Image.Image:
    return as_image(read_image("image", file, mode))


def colors(image: Image.Image) -> list[tuple[int, ...]]:
    """Return the levels of each pixel, row by row."""
    levels, depth = image.tobytes(), len(image.getbands())
    return [tuple(levels[start : start + depth]) for start in range(0, len(levels), depth)]


def refusal(file: io.BytesIO, name: str = "photo.png") -> str:
    with pytest.raises(InvalidParams) as caught:
        read_image("image", file, name=name)
    assert (caught.value.field, caught.value.value) == ("image", name)
    return caught.value.remedy


def srgb_profile() -> bytes:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def profile_with_red_and_blue_swapped() -> bytes:
    """Return sRGB's profile under another name, with the tags of two primaries exchanged."""
    profile = srgb_profile().replace("sRGB".encode("utf-16-be"), "test".encode("utf-16-be"))
    return profile.replace(b"rXYZ", b"????").replace(b"bXYZ", b"rXYZ").replace(b"????", b"bXYZ")


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_that_claims(width: int, height: int) -> io.BytesIO:
    """Return a PNG file of a few bytes with a size in its header."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 64)) + chunk(b"IEND", b"")
    return io.BytesIO(b"\x89PNG\r\n\x1a\n" + body)


@pytest.mark.parametrize(("file_format", "options"), [("PNG", {}), ("WEBP", {"lossless": True})])
def test_lossless_files_keep_each_pixel(file_format: str, options: dict[str, Any]) -> None:
    assert colors(read(file_of(two_colors(), file_format, **options))) == colors(two_colors())


def test_a_jpeg_file_is_read() -> None:
    image = read(file_of(Image.new("RGB", (16, 16), RED), "JPEG", quality=95))
    assert image.size == (16, 16)
    assert image.getpixel((8, 8)) == (254, 0, 0)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "CMYK", "I;16"])
def test_images_of_all_modes_become_rgb(mode: str) -> None:
    white = Image.new("L", (4, 2), 255)
    if mode == "I;16":
        white = Image.frombytes("I;16", (4, 2), b"\xff" * 16)
    image = read(file_of(white.convert(mode), "JPEG" if mode == "CMYK" else "PNG"))
    assert image.mode == "RGB"
    assert set(colors(image)) == {WHITE}


def test_sixteen_bits_are_rounded_to_eight() -> None:
    levels = struct.pack("<3H", 0, 128 * 257, 200 * 257 + 100)
    image = read(file_of(Image.frombytes("I;16", (3, 1), levels)), "L")
    assert colors(image) == [(0,), (128,), (200,)]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_becomes_white(mode: str) -> None:
    image = Image.new("RGBA", (2, 1), (0, 0, 0, 255))
    image.putpixel((0, 0), (0, 0, 0, 0))
    file = file_of(image.convert(mode))
    assert colors(read(file)) == [WHITE, (0, 0, 0)]


def test_half_transparent_pixels_are_mixed_with_white() -> None:
    assert read(file_of(Image.new("RGBA", (1, 1), (0, 0, 0, 51)))).getpixel((0, 0)) == (204, 204, 204)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_turned_as_its_exif_says(orientation: int) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    image = read(file_of(two_colors(), exif=exif))
    assert image.size == ((4, 2) if orientation < 5 else (2, 4))
    left_or_top = RED if orientation in (1, 4, 5, 6) else BLUE
    assert image.getpixel((0, 0)) == left_or_top


@pytest.mark.parametrize("exif", [b"Exif\0\0broken", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\xff" * 40])
def test_broken_exif_turns_nothing(exif: bytes) -> None:
    assert colors(read(file_of(two_colors(), exif=exif))) == colors(two_colors())


def test_colors_of_another_profile_become_srgb() -> None:
    image = read(file_of(two_colors(), icc_profile=profile_with_red_and_blue_swapped()))
    assert image.getpixel((0, 0)) == BLUE
    assert image.getpixel((3, 0)) == RED


def test_colors_of_srgb_stay_as_they_are() -> None:
    noise = Image.frombytes("RGB", (64, 64), os.urandom(3 * 64 * 64))
    image = read(file_of(noise, icc_profile=srgb_profile()))
    assert colors(image) == colors(noise)


def test_levels_of_masks_stay_as_they_are() -> None:
    ramp = Image.frombytes("L", (256, 1), bytes(range(256)))
    file = file_of(ramp.convert("RGB"), icc_profile=profile_with_red_and_blue_swapped())
    assert colors(read(file, "L")) == colors(ramp)


@pytest.mark.parametrize("profile", [b"not a profile", b"\0" * 200])
def test_a_broken_profile_changes_nothing(profile: bytes) -> None:
    image = read(file_of(two_colors(), icc_profile=profile))
    assert colors(image) == colors(two_colors())


def test_a_photo_with_several_views_is_its_first_one() -> None:
    views = [Image.new("RGB", (16, 16), color) for color in (RED, BLUE)]
    file = file_of(views[0], "MPO", save_all=True, append_images=views[1:])
    assert read(file).getpixel((8, 8)) == (254, 0, 0)


@pytest.mark.parametrize("file_format", ["GIF", "BMP", "TIFF", "PPM", "ICO"])
def test_other_formats_are_refused(file_format: str) -> None:
    assert refusal(file_of(two_colors(), file_format)) == "is no image; send PNG, JPEG, WEBP"


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"%PDF-1.7", b"\x89PNG\r\n\x1a\n", b"RIFF\0\0\0\0WEBPVP8 "]
)
def test_what_is_no_image_is_refused(content: bytes) -> None:
    assert refusal(io.BytesIO(content)).startswith(("is no image", "is a broken image file"))


@pytest.mark.parametrize("file_format", ["PNG", "WEBP"])
def test_animations_are_refused(file_format: str) -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in (RED, BLUE)]
    file = file_of(frames[0], file_format, save_all=True, append_images=frames[1:], duration=50)
    assert refusal(file) == "is animated; send a single image"


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "WEBP"])
def test_truncated_files_are_refused(file_format: str) -> None:
    noise = Image.frombytes("RGB", (64, 64), os.urandom(3 * 64 * 64))
    whole = file_of(noise, file_format).getvalue()
    for share in (0.3, 0.6, 0.9):
        assert "send" in refusal(io.BytesIO(whole[: int(len(whole) * share)]))


@pytest.mark.parametrize(
    "size", [(50_000, 50_000), (12_000, 12_000), (9_000, 9_000), (16_385, 1), (1, 20_000)]
)
def test_huge_images_are_refused_before_they_are_decoded(size: tuple[int, int]) -> None:
    assert refusal(png_that_claims(*size)) == "is too large; send at most 67,108,864 pixels and 16,384 a side"


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (0, 0)])
def test_images_without_pixels_are_refused(size: tuple[int, int]) -> None:
    assert "send" in refusal(png_that_claims(*size))


def test_text_that_unfolds_to_gigabytes_is_refused() -> None:
    bomb = chunk(b"zTXt", b"comment\0\0" + zlib.compress(b"\0" * 8_000_000))
    image = file_of(two_colors()).getvalue()
    after_header = 8 + 25
    assert "broken" in refusal(io.BytesIO(image[:after_header] + bomb + image[after_header:]))


def test_large_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_INPUT_BYTES", 20)
    assert refusal(file_of(two_colors())) == "is too large; send at most 20 bytes"


@pytest.mark.parametrize("position", range(8, 80, 3))
def test_files_with_a_changed_byte_are_read_or_refused(position: int) -> None:
    content = bytearray(file_of(two_colors(), exif=Image.Exif()).getvalue())
    content[min(position, len(content) - 1)] ^= 0x55
    with suppress(InvalidParams):
        read(io.BytesIO(bytes(content)))


def test_a_mask_is_white_where_an_image_is_transparent() -> None:
    image = two_colors("RGBA")
    image.putpixel((1, 0), (0, 0, 0, 0))
    image.putpixel((2, 1), (9, 9, 9, 127))
    mask = as_image(read_transparency("mask", file_of(image)))
    assert mask.mode == "L"
    assert colors(mask) == [(level,) for level in (0, 255, 0, 0, 0, 0, 128, 0)]


def test_a_mask_that_is_opaque_everywhere_is_refused() -> None:
    with pytest.raises(InvalidParams, match=r"mask='cut.png': is opaque everywhere; make transparent"):
        read_transparency("mask", file_of(two_colors("RGBA")), "cut.png")


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_mask_that_cannot_be_transparent_is_taken_as_it_is(mode: str) -> None:
    content = file_of(two_colors(mode)).getvalue()
    assert read_transparency("mask", io.BytesIO(content)) == read_image("mask", io.BytesIO(content), "L")


def test_a_file_is_read_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    two_colors().save(path)
    link = tmp_path / "link.png"
    link.symlink_to(path)
    assert load_input("image", str(path)) == load_input("image", str(link)) == input_image(two_colors())


def make_folder(path: Path) -> None:
    path.mkdir()


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_nothing(path: Path) -> None:
    assert not path.exists()


def make_unreadable_link(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (make_folder, "is no regular file"),
        (make_pipe, "is no regular file"),
        (make_link_to_a_device, "is no regular file"),
        (make_nothing, "No such file or directory"),
        (make_unreadable_link, "symbolic links"),
    ],
)
def test_paths_of_no_file_are_refused(make: Callable[[Path], None], reason: str, tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    make(path)
    with pytest.raises(InvalidParams, match=f"{reason}.*; give the path of an image file"):
        load_input("image", str(path))


def test_a_path_with_a_zero_byte_is_refused() -> None:
    with pytest.raises(InvalidParams, match="give the path of an image file"):
        load_input("mask", "image\0.png")


@pytest.mark.parametrize("pixels", [None, b"", b"\0" * 23])
def test_an_image_that_lacks_pixels_is_refused(pixels: bytes | None) -> None:
    with pytest.raises(InvalidParams, match="needs 24 bytes of pixels"):
        load_input("image", InputImage("ab", 4, 2, "RGB", pixels))


def test_equal_pixels_have_one_id_whatever_the_file() -> None:
    png, webp = file_of(two_colors()), file_of(two_colors(), "WEBP", lossless=True)
    assert read_image("image", png).id == read_image("image", webp).id
    assert read_image("image", png).id != read_image("image", png, "L").id


def test_an_input_survives_as_a_png_file() -> None:
    image = input_image(two_colors())
    assert read_image("image", io.BytesIO(png_bytes(image))) == image
    assert read_image("image", io.BytesIO(png_bytes(image))).pixels == image.pixels
