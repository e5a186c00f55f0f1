"""A third look, in which all is cast in gold: the published pictures, recolored by their brightness."""

import torch
from torch import Tensor

from sprites import Sprites

NAME = "gilded"
_GOLD = torch.tensor([(70.0, 38.0, 6.0), (205.0, 145.0, 40.0), (255.0, 240.0, 180.0)])
"""Of 255, from the darkest over the middle to the lightest."""
_BRIGHTNESS = torch.tensor([0.299, 0.587, 0.114])
"""Shares of red, green and blue (ITU-R BT.601)."""


def gilded(sprites: Sprites) -> Sprites:
    """Return the pictures of both styles in gold."""
    return Sprites({style: _cast(pixels) for style, pixels in sprites.pixels.items()})


def _cast(pixels: Tensor) -> Tensor:
    """Recolor bytes `(things, 4, side, side)`, premultiplied as they are; opacity stays."""
    opacity = pixels[:, 3:].float() / 255
    seen = torch.einsum("nchw,c->nhw", pixels[:, :3].float(), _BRIGHTNESS)[:, None] / 255
    twice = 2 * (seen / opacity.clamp(min=1 / 255)).clamp(max=1)
    dark, middle, light = _GOLD[:, :, None, None]
    gold = dark + (middle - dark) * twice.clamp(max=1) + (light - middle) * (twice - 1).clamp(min=0)
    return torch.cat([(gold * opacity).round().to(torch.uint8), pixels[:, 3:]], dim=1)
