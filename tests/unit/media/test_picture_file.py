from pathlib import Path

import pytest
from PIL import Image

from diffuserve.media.picture_file import SUFFIXES, read_parameters, save_picture

PARAMETERS = {"prompt": "ein roter Kreis über 🟦", "seed": 2**62, "width": 128}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_carries_the_parameters(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"picture{suffix}"
    save_picture(Image.new("RGB", (32, 16), "red"), path, PARAMETERS)
    assert read_parameters(path) == PARAMETERS
    with Image.open(path) as image:
        assert image.size == (32, 16)


def test_nothing_but_the_picture_is_left_in_the_folder(tmp_path: Path) -> None:
    save_picture(Image.new("RGB", (8, 8)), tmp_path / "picture.png", PARAMETERS)
    assert [path.name for path in tmp_path.iterdir()] == ["picture.png"]


def test_a_picture_of_another_origin_has_no_parameters(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "plain.png")
    assert read_parameters(tmp_path / "plain.png") == {}
