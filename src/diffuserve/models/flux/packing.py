"""The layout of a batch's tokens in packed rows.

Each image is a sequence: its text tokens, then its image tokens. Three packed rows hold them:

    text   t₁ t₂ t₃ …              the double-stream blocks' text side
    image  i₁ i₂ i₃ …              the double-stream blocks' image side
    joint  t₁ i₁ t₂ i₂ t₃ i₃ …     attention, and the single-stream blocks
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Complex64, Int
from torch import Tensor

from diffuserve.models.layers.attention import Segments
from diffuserve.models.layers.rotary import rotations


@dataclass(frozen=True)
class SequenceShape:
    """The tokens of an image: `text` of them for the prompt, then a grid of `rows` × `columns`."""

    text: int
    rows: int
    columns: int

    @property
    def image(self) -> int:
        return self.rows * self.columns

    @property
    def tokens(self) -> int:
        return self.text + self.image


@dataclass(frozen=True)
class PackedLayout:
    """Indices between the three rows; `…_owner` is the index of each token's sequence."""

    segments: Segments
    text_at: Int[Tensor, "text"]
    image_at: Int[Tensor, "image"]
    text_owner: Int[Tensor, "text"]
    image_owner: Int[Tensor, "image"]
    joint_owner: Int[Tensor, "joint"]
    image_rotation: Complex64[Tensor, "image half"]
    joint_rotation: Complex64[Tensor, "joint half"]


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
        text_at=text_at.to(device),
        image_at=image_at.to(device),
        text_owner=owner[text_at].to(device),
        image_owner=owner[image_at].to(device),
        joint_owner=owner.to(device),
        image_rotation=rotation[image_at].to(device),
        joint_rotation=rotation.to(device),
    )


@lru_cache(maxsize=256)
def _rotation(shape: SequenceShape, axes_dims: tuple[int, ...]) -> Complex64[Tensor, "tokens half"]:
    """Return a sequence's rotations: text at (0, 0, 0), which turns nothing, images at (0, row, column)."""
    positions = torch.zeros(shape.tokens, 3)
    grid = torch.cartesian_prod(torch.arange(shape.rows), torch.arange(shape.columns))
    positions[shape.text :, 1:] = grid.view(-1, 2).float()
    return rotations(positions, axes_dims)
