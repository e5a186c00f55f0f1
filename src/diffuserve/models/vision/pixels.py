"""Images as the pixels that image encoders read.

The reference implementations are transformers' `CLIPImageProcessor` and `SiglipImageProcessor`.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from diffuserve.domain.requests.input_image import InputImage
from diffuserve.models.vision.vision_config import ImageProcessorConfig, SiglipProcessorConfig

Pixels = Float[Tensor, "1 3 height width"]


def processed_image(image: InputImage, config: ImageProcessorConfig) -> Pixels:
    """Return the middle of an image whose shorter side has the size that CLIP reads, normalized."""
    opened = _opened(image)
    short = min(opened.size)
    sides = [int(config.size.shortest_edge * side / short) for side in opened.size]
    levels = np.asarray(opened.resize((sides[0], sides[1]), Image.Resampling.BICUBIC))
    scaled = (_middle(levels, config) * config.rescale_factor).astype(np.float32)
    return _normalized(scaled, config.image_mean, config.image_std)


def stretched_image(image: InputImage, config: SiglipProcessorConfig) -> Pixels:
    """Return an image in the size that SigLIP reads, normalized."""
    size = (config.size.width, config.size.height)
    levels = np.asarray(_opened(image).resize(size, Image.Resampling.BICUBIC))
    scaled = (levels * config.rescale_factor).astype(np.float32)
    return _normalized(scaled, config.image_mean, config.image_std)


def _opened(image: InputImage) -> Image.Image:
    assert image.pixels is not None
    return Image.frombytes(image.mode, (image.width, image.height), image.pixels).convert("RGB")


def _normalized(levels: NDArray[np.float32], mean: Sequence[float], deviation: Sequence[float]) -> Pixels:
    centered = levels - np.array(mean, np.float32)
    return torch.from_numpy((centered / np.array(deviation, np.float32)).transpose(2, 0, 1).copy())[None]


def _middle(levels: NDArray[np.uint8], config: ImageProcessorConfig) -> NDArray[np.uint8]:
    """Cut out the middle of an image, with black around it if it is smaller."""
    (height, width), crop = levels.shape[:2], config.crop_size
    rows, columns = max(0, crop.height - height), max(0, crop.width - width)
    padded = np.pad(levels, ((-(-rows // 2), rows // 2), (-(-columns // 2), columns // 2), (0, 0)))
    top, left = (max(0, height - crop.height) // 2, max(0, width - crop.width) // 2)
    return padded[top : top + crop.height, left : left + crop.width]
