"""Where the tokens of FLUX.1 stand: text at (0, 0, 0), which means no rotation, images by row and column."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from jaxtyping import Complex64
from torch import Tensor

from diffuserve.models.layers.joint.packing import Grid, LayoutRules, SequenceShape
from diffuserve.models.layers.rotary import rotations


def layout_rules(axes_dims: tuple[int, ...]) -> LayoutRules:
    """Return the rules of a checkpoint; `axes_dims` are the rotary channels of each axis."""

    @lru_cache(maxsize=256)
    def rotation(shape: SequenceShape) -> Complex64[Tensor, "tokens half"]:
        return rotations(_positions(shape), axes_dims)

    return LayoutRules(rotation, rotates_text=False)


def _positions(shape: SequenceShape) -> Tensor:
    """Return positions: the image's are (0, row, column), references' (1, row, column), side by side."""
    places = [(0, 0, 0), *((1, *corner) for corner in reference_corners(shape.references))]
    grids = zip((shape.image, *shape.references), places, strict=True)
    return torch.cat([torch.zeros(shape.text, 3), *(grid.positions(place) for grid, place in grids)])


def reference_corners(references: Sequence[Grid]) -> list[tuple[int, int]]:
    """Return the row and column at which each reference begins, so that none overlaps another.

    Each is placed below the others or to their right, whichever keeps the whole closer to a square: models
    were trained with a single reference, and know positions of about its extent.
    """
    corners = []
    rows = columns = 0
    for grid in references:
        top, left = (0, columns) if rows + grid.rows > columns + grid.columns else (rows, 0)
        corners.append((top, left))
        rows, columns = max(rows, top + grid.rows), max(columns, left + grid.columns)
    return corners
