"""Which images are decoded in strips of rows, and how large these are. Importing this file loads no torch."""

MAX_WHOLE_PIXELS = 1280 * 1280
"""Pixels of the largest image that is decoded whole."""
CPU_STRIP_SCALARS = 1 << 21
"""Scalars of a strip's widest features on a CPU, whose caches hold about as many."""
STRIP_SCALARS = 1 << 25
"""Scalars of a strip's widest features elsewhere: enough to fill a GPU."""
_LIVE_STRIPS = 6  # around a convolution whose input is upsampled and normalized


def needs_strips(num_pixels: int) -> bool:
    """Return whether an image of so many pixels is decoded in strips.

    That depends on its size alone, so that equal requests have equal images whatever memory is left.
    """
    return num_pixels > MAX_WHOLE_PIXELS


def strip_rows(row_scalars: int, is_cpu: bool) -> int:
    """Return the rows of a strip whose widest features have so many scalars in each: at least one."""
    return max(1, (CPU_STRIP_SCALARS if is_cpu else STRIP_SCALARS) // row_scalars)


def strip_bytes(widest_scalars: int, item_bytes: int) -> int:
    """Return the most bytes of what is computed of a strip at once, of an image's widest features."""
    return _LIVE_STRIPS * min(max(STRIP_SCALARS, CPU_STRIP_SCALARS), widest_scalars) * item_bytes
