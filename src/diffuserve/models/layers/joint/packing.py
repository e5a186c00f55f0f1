"""The layout of a batch's tokens in packed rows.

Each image is a sequence: its text tokens, its image tokens, and the tokens of its references, which count as
image tokens too. Three packed rows hold them:

    text   t₁ t₂ t₃ …              the text side of blocks with two streams
    image  i₁ i₂ i₃ …              their image side
    joint  t₁ i₁ t₂ i₂ t₃ i₃ …     attention, and blocks with a single stream

Attention does not depend on the order of tokens, so all families use this one, whichever they were trained
with: a token's position is in its rotation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Complex64, Float, Int
from torch import Tensor

from diffuserve.models.layers.adapted.adapters import NO_ADAPTERS, PassAdapters
from diffuserve.models.layers.joint.block_changes import BlockChanges
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

    def positions(self, first: tuple[int, int, int]) -> Float[Tensor, "tokens 3"]:
        """Return the positions of its tokens, row by row; those of the first one are given."""
        ranges = (torch.arange(1), torch.arange(self.rows), torch.arange(self.columns))
        return (torch.cartesian_prod(*ranges) + torch.tensor(first)).float()


@dataclass(frozen=True)
class SequenceShape:
    """The tokens of a sequence: `text` of them for the prompt, then the image, then its references.

    `padding` counts learned tokens that some models want after the image.
    """

    text: int
    image: Grid
    references: tuple[Grid, ...] = ()
    padding: int = 0

    @property
    def reference_tokens(self) -> int:
        return sum(reference.tokens for reference in self.references)

    @property
    def image_tokens(self) -> int:
        """Tokens of the image, of its references and of the padding."""
        return self.image.tokens + self.reference_tokens + self.padding

    @property
    def tokens(self) -> int:
        return self.text + self.image_tokens


@dataclass(frozen=True)
class PackedLayout:
    """Indices between the three rows; `…_owner` is the row of factors of each token.

    `segments` are those of the joint row, `image_segments` of the image row. Factor row `s` is that of
    sequence `s`. If references have factors of their own, theirs are in row `sequences + s`. If
    `has_text_first`, the joint row is the text row followed by the image row: no token has to be moved. Text
    that is not rotated has no `text_rotation`.
    """

    segments: Segments
    image_segments: Segments
    text_at: Int[Tensor, "text"]
    image_at: Int[Tensor, "image"]
    text_owner: Int[Tensor, "text"]
    image_owner: Int[Tensor, "image"]
    joint_owner: Int[Tensor, "joint"]
    text_rotation: Complex64[Tensor, "text half"] | None
    image_rotation: Complex64[Tensor, "image half"]
    joint_rotation: Complex64[Tensor, "joint half"]
    has_text_first: bool


@dataclass(frozen=True)
class LayoutRules:
    """What a family lays out by: the rotations of a sequence's tokens, from its text on.

    `rotates_text`: text has other rotations than 1. `sets_references_apart`: references have factors of their
    own.
    """

    rotation: Callable[[SequenceShape], Complex64[Tensor, "tokens half"]]
    rotates_text: bool = True
    sets_references_apart: bool = False

    def owner(self, shape: SequenceShape, sequence: int, num_sequences: int) -> Int[Tensor, "tokens"]:
        """Return the factor rows of a sequence's tokens."""
        rows = torch.full((shape.tokens,), sequence)
        if self.sets_references_apart:
            first = shape.text + shape.image.tokens
            rows[first : first + shape.reference_tokens] += num_sequences
        return rows


def pack_layout(shapes: Sequence[SequenceShape], rules: LayoutRules, device: torch.device) -> PackedLayout:
    """Build the layout of sequences in this order."""
    is_text = torch.cat([torch.arange(shape.tokens) < shape.text for shape in shapes])
    owner = torch.cat([rules.owner(shape, index, len(shapes)) for index, shape in enumerate(shapes)])
    rotation = torch.cat([rules.rotation(shape) for shape in shapes])
    text_at, image_at = is_text.nonzero().squeeze(-1), (~is_text).nonzero().squeeze(-1)
    return PackedLayout(
        segments=Segments.of(tuple(shape.tokens for shape in shapes), device),
        image_segments=Segments.of(tuple(shape.image_tokens for shape in shapes), device),
        text_at=to_device(text_at, device),
        image_at=to_device(image_at, device),
        text_owner=to_device(owner[text_at], device),
        image_owner=to_device(owner[image_at], device),
        joint_owner=to_device(owner, device),
        text_rotation=to_device(rotation[text_at], device) if rules.rotates_text else None,
        image_rotation=to_device(rotation[image_at], device),
        joint_rotation=to_device(rotation, device),
        has_text_first=len(shapes) == 1,
    )


@dataclass(frozen=True)
class PackedInput:
    """The input of a forward pass; `factors` are the modulation factors of each sequence.

    If ranks share the weights, they are this rank's channels. `adapters` are those of the tokens; factors
    have been made with theirs. `changes` are what ControlNets add after blocks.
    """

    image: Float[Tensor, "image channels"]
    text: Float[Tensor, "text text_dim"]
    factors: Float[Tensor, "rows factors own_d"]
    layout: PackedLayout
    adapters: PassAdapters = NO_ADAPTERS
    changes: tuple[BlockChanges, ...] = ()
