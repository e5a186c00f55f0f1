"""Where the tokens of FLUX.2 stand, on four axes: time, row, column and place in the prompt.

Reference implementation: diffusers' `Flux2Pipeline._prepare_image_ids` and its siblings.
"""

from functools import lru_cache

import torch
from jaxtyping import Complex64, Float
from torch import Tensor

from diffuserve.models.layers.joint.packing import Grid, LayoutRules, SequenceShape
from diffuserve.models.layers.rotary import rotations

_TIME_APART = 10  # between references, and between the first one and the image


def layout_rules(axes_dims: tuple[int, ...], theta: int) -> LayoutRules:
    """Return the rules of a checkpoint; `axes_dims` are the rotary channels of each axis."""

    @lru_cache(maxsize=256)
    def rotation(shape: SequenceShape) -> Complex64[Tensor, "tokens half"]:
        return rotations(_positions(shape), axes_dims, float(theta))

    return LayoutRules(rotation)


def _positions(shape: SequenceShape) -> Float[Tensor, "tokens 4"]:
    """Return (0, 0, 0, place) of the text, and (time, row, column, 0) of the image and of its references."""
    text = torch.zeros(shape.text, 4)
    text[:, 3] = torch.arange(shape.text)
    grids = enumerate((shape.image, *shape.references))
    return torch.cat([text, *(_of_grid(grid, _TIME_APART * number) for number, grid in grids)])


def _of_grid(grid: Grid, time: int) -> Float[Tensor, "tokens 4"]:
    return torch.cat([grid.positions((time, 0, 0)), torch.zeros(grid.tokens, 1)], dim=1)
