"""Where Z-Image's tokens stand: prompts along the first axis, from 1 on, and images one place behind them.

The padding of a prompt goes on counting, and that of an image stands at (0, 0, 0).
"""

from functools import lru_cache

import torch
from jaxtyping import Complex64, Float
from torch import Tensor

from diffuserve.models.families.z_image.config import PAD_MULTIPLE, ZImageConfig
from diffuserve.models.layers.joint.packing import LayoutRules, SequenceShape
from diffuserve.models.layers.rotary import rotations


def layout_rules(config: ZImageConfig) -> LayoutRules:
    """Return the rules of a checkpoint."""

    @lru_cache(maxsize=256)
    def rotation(shape: SequenceShape) -> Complex64[Tensor, "tokens half"]:
        image = shape.image.positions((shape.text + 1, 0, 0))
        positions = torch.cat([_along_first_axis(shape.text), image, torch.zeros(shape.padding, 3)])
        return rotations(positions, config.axes_dims, config.rope_theta)

    return LayoutRules(rotation)


def caption_rotation(config: ZImageConfig, tokens: int) -> Complex64[Tensor, "tokens half"]:
    """Return the rotations of a prompt of so many tokens, padding included."""
    return rotations(_along_first_axis(tokens), config.axes_dims, config.rope_theta)


def padding(tokens: int) -> int:
    """Return how many learned tokens follow those of a prompt or of an image."""
    return -tokens % PAD_MULTIPLE


def _along_first_axis(tokens: int) -> Float[Tensor, "tokens 3"]:
    positions = torch.zeros(tokens, 3)
    positions[:, 0] = torch.arange(1, tokens + 1)
    return positions
