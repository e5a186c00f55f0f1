"""Images that requests bring along, as tensors of the size that is generated.

Reference: diffusers' `VaeImageProcessor`. Images are stretched to the size by Lanczos's filter; steps and
their order are the reference's, so that tensors are equal to the last bit.
"""

import math

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from diffuserve.domain.requests.input_image import InputImage
from diffuserve.samplers.base import Sampler, ScheduleStep

Pixels = Float[Tensor, "1 3 height width"]
Mask = Float[Tensor, "1 1 height width"]

_THRESHOLD = 0.5  # mask levels from here on mean "change"


def image_tensor(image: InputImage, width: int, height: int) -> Pixels:
    """Return an image's colors in -1…1, in float32."""
    return _colors(_levels(image, "RGB", width, height))


def level_tensor(image: InputImage, width: int, height: int) -> Pixels:
    """Return an image's colors in 0…1, in float32."""
    return torch.from_numpy(_levels(image, "RGB", width, height).transpose(2, 0, 1).copy())[None]


def cropped_tensor(image: InputImage, width: int, height: int, max_pixels: int) -> Pixels:
    """Return an image's colors in -1…1, in float32: shrunk to `max_pixels`, and its borders cut off.

    Reference: diffusers' `Flux2ImageProcessor`.
    """
    opened = _opened(image)
    if image.num_pixels > max_pixels:
        scale = math.sqrt(max_pixels / image.num_pixels)
        sides = (int(image.width * scale), int(image.height * scale))
        opened = opened.resize(sides, Image.Resampling.LANCZOS)
    left, top = (opened.width - width) // 2, (opened.height - height) // 2
    cut = opened.crop((left, top, left + width, top + height))
    return _colors(_levels_of(cut, "RGB"))


def mask_tensor(mask: InputImage, width: int, height: int) -> Mask:
    """Return a mask that is 1 where the image is to change and else 0, in float32."""
    levels = torch.from_numpy(_levels(mask, "L", width, height))
    return (levels >= _THRESHOLD).float()[None, None]


def masked_image(pixels: Pixels, mask: Mask) -> Pixels:
    """Return an image that is gray, 0, where it is to change."""
    return pixels * (mask < _THRESHOLD)


def latent_mask(mask: Mask, scale: int) -> Float[Tensor, "1 1 rows columns"]:
    """Return a mask of latents; each takes the value of the first of its `scale` × `scale` pixels."""
    height, width = mask.shape[-2:]
    return F.interpolate(mask, size=(height // scale, width // scale))


def put_back(
    latents: Float[Tensor, "*shape"], guides: tuple[Tensor, ...], sampler: Sampler, at: ScheduleStep
) -> Float[Tensor, "*shape"]:
    """Return latents after a step with what a mask keeps of an image put back, as noisy as they are.

    `guides` are the image's latents, the request's first noise, and the mask, 1 where the image changes.
    """
    clean, noise, mask = guides
    known = clean if at.is_last else sampler.add_noise(clean, noise, at.schedule.at(at.index + 1))
    return (1 - mask) * known + mask * latents


def _levels(image: InputImage, mode: str, width: int, height: int) -> NDArray[np.float32]:
    """Return an image of another size, as levels in 0…1."""
    return _levels_of(_opened(image).resize((width, height), Image.Resampling.LANCZOS), mode)


def _opened(image: InputImage) -> Image.Image:
    assert image.pixels is not None
    return Image.frombytes(image.mode, (image.width, image.height), image.pixels)


def _levels_of(image: Image.Image, mode: str) -> NDArray[np.float32]:
    return np.asarray(image.convert(mode)).astype(np.float32) / np.float32(255.0)


def _colors(levels: NDArray[np.float32]) -> Pixels:
    """Return the levels of red, green and blue in -1…1."""
    return 2.0 * torch.from_numpy(levels.transpose(2, 0, 1).copy())[None] - 1.0
