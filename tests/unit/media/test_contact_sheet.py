"""The contact sheet: all images of a run on one."""

from PIL import Image

from diffuserve.media.contact_sheet import contact_sheet


def test_a_sheet_holds_images_of_any_size() -> None:
    colors = ["red", "lime", "blue", "yellow", "magenta"]
    sizes = [(64, 64), (128, 32), (32, 128), (1024, 512), (16, 16)]
    images = [
        (Image.new("RGB", size, color), f"a {color} image") for size, color in zip(sizes, colors, strict=True)
    ]
    sheet = contact_sheet(images)
    shown = {color for _, color in sheet.getcolors(sheet.width * sheet.height) or []}
    expected = [image.getpixel((0, 0)) for image, _ in images]
    assert set(expected) <= shown


def test_small_images_are_enlarged_by_whole_factors() -> None:
    sheet = contact_sheet([(Image.new("RGB", (64, 64), "red"), "")])
    red = sum(count for count, color in sheet.getcolors(2**20) or [] if color == (255, 0, 0))
    assert red == (64 * 4) ** 2


def test_long_captions_stay_inside_their_cell() -> None:
    sheet = contact_sheet([(Image.new("RGB", (64, 64)), "word " * 100)])
    other = contact_sheet([(Image.new("RGB", (64, 64)), "")])
    assert sheet.size == other.size
