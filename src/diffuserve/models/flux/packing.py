"""The layout of a batch's tokens in packed rows.

Each image is a sequence: its text tokens, its image tokens, and the tokens of its references, which count as
image tokens too. Three packed rows hold them:

    text   t₁ t₂ t₃ …              the double-stream blocks' text side
    image  i₁ i₂ i₃ …              the double-stream blocks' image side
    joint  t₁ i₁ t₂ i₂ t₃ i₃ …     attention, and the single-stream blocks
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Complex64, Float, Int
from torch import Tensor

from diffuserve.models.layers.rotary import rotations
from diffuserve.models.layers.segments import Segments
from diffuserve.models.machine.devices import to_device


@dataclass(frozen=True)
class Grid:
    """The token grid of a generated image or of a reference."""

    rows: int
    columns: int

    @property
    def tokens(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True)
class SequenceShape:
    """The tokens of a sequence: `text` of them for the prompt, then the image, then its references."""

    text: int
    image: Grid
    references: tuple[Grid, ...] = ()

    @property
    def image_tokens(self) -> int:
        """Tokens of the image and of its references."""
        return self.image.tokens + sum(reference.tokens for reference in self.references)

    @property
    def tokens(self) -> int:
        return self.text + self.image_tokens


@dataclass(frozen=True)
class PackedLayout:
    """Indices between the three rows; `…_owner` is the index of each token's sequence.

    If `has_text_first`, the joint row is the text row followed by the image row: no token has to be moved.
    """

    segments: Segments
    text_at: Int[Tensor, "text"]
    image_at: Int[Tensor, "image"]
    text_owner: Int[Tensor, "text"]
    image_owner: Int[Tensor, "image"]
    joint_owner: Int[Tensor, "joint"]
    image_rotation: Complex64[Tensor, "image half"]
    joint_rotation: Complex64[Tensor, "joint half"]
    has_text_first: bool


def pack_layout(
    shapes: Sequence[SequenceShape], axes_dims: tuple[int, ...], device: torch.device
) -> PackedLayout:
    """Build the layout of sequences in this order; `axes_dims` are the rotary channels of each axis."""
    lengths = tuple(shape.tokens for shape in shapes)
    is_text = torch.cat([torch.arange(shape.tokens) < shape.text for shape in shapes])
    owner = torch.arange(len(shapes)).repeat_interleave(torch.tensor(lengths))
    rotation = torch.cat([_rotation(shape, axes_dims) for shape in shapes])
    text_at, image_at = is_text.nonzero().squeeze(-1), (~is_text).nonzero().squeeze(-1)
    return PackedLayout(
        segments=Segments.of(lengths, device),
        text_at=to_device(text_at, device),
        image_at=to_device(image_at, device),
        text_owner=to_device(owner[text_at], device),
        image_owner=to_device(owner[image_at], device),
        joint_owner=to_device(owner, device),
        image_rotation=to_device(rotation[image_at], device),
        joint_rotation=to_device(rotation, device),
        has_text_first=len(shapes) == 1,
    )


@lru_cache(maxsize=256)
def _rotation(shape: SequenceShape, axes_dims: tuple[int, ...]) -> Complex64[Tensor, "tokens half"]:
    """Return a sequence's rotations.

    Text is at (0, 0, 0), which means no rotation, the image at (0, row, column), and references at (1, row,
    column), side by side.
    """
    places = [(0, 0, 0), *((1, *corner) for corner in reference_corners(shape.references))]
    grids = [
        _positions(grid, place) for grid, place in zip((shape.image, *shape.references), places, strict=True)
    ]
    return rotations(torch.cat([torch.zeros(shape.text, 3), *grids]), axes_dims)


def _positions(grid: Grid, place: tuple[int, int, int]) -> Float[Tensor, "tokens 3"]:
    """Return the positions of a grid whose first token is at `place`."""
    ranges = (torch.arange(1), torch.arange(grid.rows), torch.arange(grid.columns))
    return (torch.cartesian_prod(*ranges) + torch.tensor(place)).float()


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
