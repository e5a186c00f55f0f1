"""Files of images with their parameters."""

from pathlib import Path

import pytest
from PIL import ExifTags, Image, PngImagePlugin

from diffuserve.media.file_names import FORMATS
from diffuserve.media.image_file import read_parameters, save_image

PARAMETERS = {"prompt": "ein roter Kreis über 🟦", "seed": 2**62, "width": 128, "model_hash": "ab12"}
LOSSY = (".webp", ".jpg", ".jpeg")
IMAGE = Image.new("RGB", (32, 16), "red")


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_carries_the_parameters(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"image{suffix}"
    save_image(IMAGE, path, PARAMETERS)
    assert read_parameters(path) == PARAMETERS
    with Image.open(path) as image:
        assert image.size == (32, 16)


@pytest.mark.parametrize("prompt", ["a star", "<b>&amp;</b> ]]> \"'", "tab\tline\n\x07", "🟦", "\ufffe"])
@pytest.mark.parametrize("suffix", FORMATS)
def test_prompts_of_any_script_and_of_full_length_are_read_back(
    suffix: str, prompt: str, tmp_path: Path
) -> None:
    full = (prompt * 2_000)[:2_000]
    parameters = {"prompt": full, "negative_prompt": full, "original_prompt": full}
    path = tmp_path / f"image{suffix}"
    save_image(IMAGE, path, parameters)
    assert read_parameters(path) == parameters


@pytest.mark.parametrize("suffix", LOSSY)
def test_lossy_formats_carry_parameters_as_xmp_and_as_exif(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"image{suffix}"
    save_image(IMAGE, path, PARAMETERS)
    with Image.open(path) as image:
        assert "ein roter Kreis über 🟦" in image.info["xmp"].decode()
        exif = image.getexif()
    assert exif[ExifTags.Base.Software].startswith("diffuserve ")
    assert '"seed": 4611686018427387904' in exif[ExifTags.Base.ImageDescription]


@pytest.mark.parametrize("suffix", LOSSY)
def test_parameters_are_read_from_either_xmp_or_exif(suffix: str, tmp_path: Path) -> None:
    path, other = tmp_path / f"image{suffix}", tmp_path / f"other{suffix}"
    save_image(IMAGE, path, PARAMETERS)
    with Image.open(path) as image:
        for kept in ({"exif": image.getexif()}, {"xmp": image.info["xmp"]}):
            IMAGE.save(other, **kept)
            assert read_parameters(other) == PARAMETERS


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_file_without_parameters_has_no_metadata(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"image{suffix}"
    save_image(IMAGE, path, {})
    assert read_parameters(path) == {}
    content = path.read_bytes()
    assert not any(sign in content for sign in (b"diffuserve", b"Exif", b"EXIF", b"XMP", b"xpacket"))


def test_no_partial_file_is_left(tmp_path: Path) -> None:
    save_image(Image.new("RGB", (8, 8)), tmp_path / "image.png", PARAMETERS)
    assert [path.name for path in tmp_path.iterdir()] == ["image.png"]


def test_an_image_of_another_origin_has_no_parameters(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "plain.png")
    assert read_parameters(tmp_path / "plain.png") == {}


@pytest.mark.parametrize("text", ["no JSON", "[1]", "7", ""])
def test_other_text_in_a_file_is_not_parameters(text: str, tmp_path: Path) -> None:
    info = PngImagePlugin.PngInfo()
    info.add_itxt("diffuserve", text)
    IMAGE.save(tmp_path / "image.png", pnginfo=info)
    assert read_parameters(tmp_path / "image.png") == {}


def test_a_lower_quality_makes_smaller_files(tmp_path: Path) -> None:
    noise = Image.effect_noise((64, 64), 50).convert("RGB")
    sizes = []
    for quality in (5, None, 100):
        save_image(noise, tmp_path / "image.jpeg", {}, quality)
        sizes.append((tmp_path / "image.jpeg").stat().st_size)
    assert sizes[0] < sizes[1] / 3 < sizes[1] < sizes[2]
