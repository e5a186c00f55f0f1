"""Images as Qwen2.5-VL's vision tower reads them: resized, normalized, and in patches.

Reference implementations: transformers' `Qwen2VLImageProcessorPil`, and before it the resizing of diffusers'
`QwenImageEditPlusPipeline`.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from diffuserve.domain.requests.input_image import InputImage
from diffuserve.models.text.qwen_vision_config import QwenPixelsConfig, QwenVisionConfig

_LEVEL = np.float32(1 / 255)


@dataclass(frozen=True)
class ImagePatches:
    """The patches of an image of `rows` × `columns` cells: cell by cell, and in each of these row by row."""

    pixels: Float[Tensor, "patches inputs"]
    rows: int
    columns: int

    @property
    def num_tokens(self) -> int:
        return self.rows * self.columns


def image_patches(
    image: InputImage, num_pixels: int, pixels: QwenPixelsConfig, config: QwenVisionConfig
) -> ImagePatches:
    """Return the patches of an image that is scaled to about `num_pixels` before the tower's own resizing."""
    assert image.pixels is not None
    opened = Image.frombytes(image.mode, (image.width, image.height), image.pixels).convert("RGB")
    scaled = opened.resize(image.scaled(num_pixels), Image.Resampling.LANCZOS)
    size = pixels.resized(*scaled.size, config.cell)
    levels = np.asarray(scaled.resize(size, Image.Resampling.BICUBIC)).astype(np.float32) * _LEVEL
    mean, deviation = (np.array(each, np.float32) for each in (pixels.image_mean, pixels.image_std))
    return _in_patches(torch.from_numpy((levels - mean) / deviation), config)


def _in_patches(levels: Float[Tensor, "height width 3"], config: QwenVisionConfig) -> ImagePatches:
    """Cut an image into patches; a still image fills all frames of them."""
    rows, columns = (side // config.cell for side in levels.shape[:2])
    merged, side = config.spatial_merge_size, config.patch_size
    cut = levels.view(rows, merged, side, columns, merged, side, 3).permute(0, 3, 1, 4, 6, 2, 5)
    frames = cut.unsqueeze(5).expand(-1, -1, -1, -1, -1, config.temporal_patch_size, -1, -1)
    return ImagePatches(frames.reshape(rows * columns * merged**2, -1), rows, columns)
