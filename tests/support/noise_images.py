"""Images of noise, whose every pixel matters."""

import numpy as np

from diffuserve.domain.requests.input_image import InputImage


def noise_image(width: int, height: int, seed: int) -> InputImage:
    """Return an image with random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return InputImage(f"noise {seed}", width, height, "RGB", pixels.tobytes())
