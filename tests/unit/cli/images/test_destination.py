"""Paths of the images that commands write."""

from pathlib import Path

import pytest
import typer
from PIL import Image

from diffuserve.cli.images.destination import Destination
from diffuserve.media.file_names import slug
from diffuserve.media.image_file import save_image

STAR = {"prompt": "a star", "seed": 7}


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        ("A red circle!", "a-red-circle"),
        ("日本", "image"),
        ("a" * 99, "a" * 60),
        ("../etc/passwd", "etc-passwd"),
    ],
)
def test_file_names_read_like_the_prompt(prompt: str, name: str) -> None:
    assert slug(prompt) == name


@pytest.mark.parametrize("name", ["star.png", "star.PNG", "star.webp", "star.jpg", "star.jpeg"])
def test_a_name_with_the_suffix_of_an_image_is_a_file(name: str, tmp_path: Path) -> None:
    destination = Destination.parse(tmp_path / name)
    assert destination.path(STAR, number=None) == tmp_path / name


def test_any_other_name_is_a_folder(tmp_path: Path) -> None:
    assert Destination.parse(tmp_path / "out").path(STAR, number=None) == tmp_path / "out" / "a-star-7.png"


def test_an_existing_folder_may_have_a_dot_in_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "images.v2"
    folder.mkdir()
    assert Destination.parse(folder).folder == folder


def test_an_unknown_image_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match=r"unknown format '\.tiff'; known: \.png"):
        Destination.parse(tmp_path / "star.tiff")


def test_files_named_after_prompts_are_replaced_only_by_the_same_image(tmp_path: Path) -> None:
    destination = Destination.parse(tmp_path)
    first = destination.path(STAR, number=None)
    assert first.name == "a-star-7.png"
    save_image(Image.new("RGB", (8, 8)), first, STAR)
    assert destination.path(STAR, number=None) == first
    second = destination.path({**STAR, "width": 64}, number=None)
    assert second.name == "a-star-7-2.png"
    save_image(Image.new("RGB", (8, 8)), second, {**STAR, "width": 64})
    assert destination.path({**STAR, "width": 32}, number=None).name == "a-star-7-3.png"


def test_several_images_of_a_named_file_are_numbered(tmp_path: Path) -> None:
    destination = Destination.parse(tmp_path / "star.webp")
    assert destination.path(STAR, number=2) == tmp_path / "star-2.webp"
    assert destination.path(STAR, number=None) == tmp_path / "star.webp"
