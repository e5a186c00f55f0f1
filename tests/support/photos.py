"""Input images of requests: soft colors, and masks."""

import torch
from PIL import Image

from diffuserve.domain.requests.input_image import ImageInput, InputImage
from diffuserve.media.input_image import input_image


def photo(seed: int, width: int, height: int) -> InputImage:
    """Return an image of soft colors."""
    generator = torch.Generator().manual_seed(seed)
    colors = torch.randint(256, (4, 5, 3), generator=generator, dtype=torch.uint8)
    return input_image(Image.fromarray(colors.numpy()).resize((width, height), Image.Resampling.BICUBIC))


def rectangle(width: int, height: int, left: int, top: int, right: int, bottom: int) -> InputImage:
    """Return a mask that is white within a rectangle."""
    mask = Image.new("L", (width, height))
    mask.paste(255, (left, top, right, bottom))
    return input_image(mask, "L")


def shown(image: ImageInput) -> InputImage:
    """Return an image that a request has with its pixels."""
    assert isinstance(image, InputImage)
    return image
