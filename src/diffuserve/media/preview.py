"""Previews that people can look at."""

from PIL.Image import Image, Resampling

_LONGER_SIDE = 128  # minimum, in pixels
_LONGEST_SIDE = 1_024  # of an enlarged preview, in pixels


def enlarged(image: Image) -> Image:
    """Return a preview of at least 128 pixels along its longer side; steps between its cells are smooth.

    A strip, of the frames of a clip side by side, is at least 64 pixels high as far as 1,024 pixels are wide
    enough for that.
    """
    shorter, longer = sorted(image.size)
    factor = min(-(-_LONGER_SIDE // min(longer, 2 * shorter)), max(1, _LONGEST_SIDE // longer))
    if factor == 1:
        return image
    return image.resize((factor * image.width, factor * image.height), Resampling.BICUBIC)
