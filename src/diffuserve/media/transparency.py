"""Images with transparency: as they look on paper, and all that they show."""

from collections.abc import Iterator

from PIL import Image


def flattened(image: Image.Image, paper: str = "white") -> Image.Image:
    """Return an image in RGB as it looks on paper of a color, by its name; opaque ones as they are."""
    if not image.has_transparency_data:
        return image
    clear = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", clear.size, paper), clear).convert("RGB")


def views(image: Image.Image) -> Iterator[Image.Image]:
    """Yield all that an image shows: on light and on dark paper, and what its transparency hides."""
    if not image.has_transparency_data:
        yield image
        return
    yield from (flattened(image, paper) for paper in ("white", "black"))
    yield image.convert("RGBA").convert("RGB")
