"""Distance between images."""

import numpy as np
from PIL import Image


def psnr(left: Image.Image, right: Image.Image) -> float:
    """Return the peak signal-to-noise ratio in dB; 160 or so where the images are equal."""
    first, second = (np.asarray(image, dtype=float) for image in (left, right))
    return float(10 * np.log10(255**2 / max(float(np.mean((first - second) ** 2)), 1e-12)))
