"""Where the tokens of Qwen-Image stand: images around the origin, text on the diagonal beyond their edges.

The image is in frame 0, reference `i` in frame `i`, and all of them have their middles at row and column 0.

Reference implementation: diffusers' `QwenEmbedRope`.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from jaxtyping import Complex64, Float
from torch import Tensor

from diffuserve.models.layers.joint.packing import Grid, LayoutRules, SequenceShape
from diffuserve.models.layers.rotary import rotations

_MAX_KEPT = 32  # rotations of images, of 2 MiB for a megapixel; those of texts vary more, and are made anew


def layout_rules(axes_dims: tuple[int, ...], zero_cond_t: bool) -> LayoutRules:
    """Return the rules of a checkpoint; `axes_dims` are the rotary channels of each axis.

    With `zero_cond_t` references have factors of their own.
    """

    @lru_cache(maxsize=_MAX_KEPT)
    def of_images(*grids: Grid) -> Complex64[Tensor, "tokens half"]:
        positions = [_centered(grid, frame) for frame, grid in enumerate(grids)]
        return rotations(torch.cat(positions), axes_dims)

    def rotation(shape: SequenceShape) -> Complex64[Tensor, "tokens half"]:
        grids = (shape.image, *shape.references)
        return torch.cat([rotations(_text_positions(shape.text, grids), axes_dims), of_images(*grids)])

    return LayoutRules(rotation, sets_references_apart=zero_cond_t)


def _text_positions(count: int, grids: Sequence[Grid]) -> Float[Tensor, "text 3"]:
    """Return (s + j, s + j, s + j) for token `j`, where `s` is half the longest side of all images."""
    start = max(max(grid.rows, grid.columns) // 2 for grid in grids)
    return (start + torch.arange(count)).float()[:, None].expand(-1, 3)


def _centered(grid: Grid, frame: int) -> Float[Tensor, "tokens 3"]:
    """Return the positions of a grid whose token at (rows / 2, columns / 2), rounded up, is at the origin."""
    return grid.positions((frame, grid.rows // 2 - grid.rows, grid.columns // 2 - grid.columns))
