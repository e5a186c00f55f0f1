"""Where the tokens of Qwen-Image stand: images around the origin, text on the diagonal beyond their edges.

Reference implementation: diffusers' `QwenEmbedRope`.
"""

from functools import lru_cache

import torch
from jaxtyping import Complex64, Float
from torch import Tensor

from diffuserve.models.layers.joint.packing import Grid, LayoutRules, SequenceShape
from diffuserve.models.layers.rotary import rotations


def layout_rules(axes_dims: tuple[int, ...], zero_cond_t: bool) -> LayoutRules:
    """Return the rules of a checkpoint; `axes_dims` are the rotary channels of each axis.

    With `zero_cond_t` references have factors of their own.
    """

    @lru_cache(maxsize=256)
    def rotation(shape: SequenceShape) -> Complex64[Tensor, "tokens half"]:
        return rotations(_positions(shape), axes_dims)

    return LayoutRules(rotation, sets_references_apart=zero_cond_t)


def _positions(shape: SequenceShape) -> Float[Tensor, "tokens 3"]:
    """Return positions: those of the image are (0, row, column), those of reference `i` (i, row, column).

    Text token `j` stands at (s + j, s + j, s + j), where `s` is half the longest side of all of them.
    """
    grids = (shape.image, *shape.references)
    start = max(max(grid.rows, grid.columns) // 2 for grid in grids)
    text = (start + torch.arange(shape.text)).float()[:, None].expand(-1, 3)
    return torch.cat([text, *(_centered(grid, frame) for frame, grid in enumerate(grids))])


def _centered(grid: Grid, frame: int) -> Float[Tensor, "tokens 3"]:
    """Return the positions of a grid whose token at (rows / 2, columns / 2), rounded up, is at the origin."""
    return grid.positions((frame, grid.rows // 2 - grid.rows, grid.columns // 2 - grid.columns))
