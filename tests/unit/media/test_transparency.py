"""What images with transparency show."""

import pytest
from PIL import Image

from diffuserve.domain.errors import InvalidParams
from diffuserve.media.file_names import check_keeps_transparency
from diffuserve.media.transparency import flattened, views

CLEAR_RED = Image.new("RGBA", (2, 2), (255, 0, 0, 0))


def test_paper_shows_through_what_is_transparent() -> None:
    assert flattened(CLEAR_RED).getpixel((0, 0)) == (255, 255, 255)
    assert flattened(CLEAR_RED, "black").getpixel((0, 0)) == (0, 0, 0)
    half = flattened(Image.new("RGBA", (1, 1), (0, 0, 0, 128)))
    assert (half.mode, half.getpixel((0, 0))) == ("RGB", (127, 127, 127))


def test_an_image_is_seen_on_light_and_dark_paper_and_without_transparency() -> None:
    seen = [view.getpixel((0, 0)) for view in views(CLEAR_RED)]
    assert seen == [(255, 255, 255), (0, 0, 0), (255, 0, 0)]


def test_an_opaque_image_is_seen_as_it_is() -> None:
    opaque = Image.new("RGB", (2, 2))
    assert list(views(opaque)) == [opaque]
    assert flattened(opaque) is opaque


@pytest.mark.parametrize("name", ["jpeg", "jpg"])
def test_formats_without_transparency_are_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidParams, match=f"^output_format='{name}': keeps no transparency; give png or"):
        check_keeps_transparency("output_format", name)
    check_keeps_transparency("output_format", "png")
