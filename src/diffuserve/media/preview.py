"""Previews that people can look at."""

from PIL.Image import Image, Resampling

_LONGER_SIDE = 128  # in pixels, at least


def enlarged(image: Image) -> Image:
    """Return a preview of at least 128 pixels along its longer side; steps between its cells are smooth."""
    factor = -(-_LONGER_SIDE // max(image.size))
    if factor == 1:
        return image
    return image.resize((factor * image.width, factor * image.height), Resampling.BICUBIC)
