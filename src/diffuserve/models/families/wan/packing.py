"""The layout of a batch's tokens in a packed row.

Each clip is a sequence, and so is each of its guidance passes: its tokens, frame by frame and row by row.
Prompts are in a row of their own, each with a single row of zeros for its padding, and so are the embeddings
of images:

    tokens  c₁ c₂ c₃ …        text  p₁ 0 p₂ 0 p₃ 0 …        image  e₁ e₂ e₃ …

Timesteps act through factor rows. A sequence has one, or two if its first latent frame is given: that frame's
tokens then have a timestep of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from einops import rearrange
from jaxtyping import Complex64, Float
from torch import Tensor

from diffuserve.models.families.wan.config import WanTransformerConfig
from diffuserve.models.layers.adapted.adapters import RowAdapters, Uses
from diffuserve.models.layers.rotary import rotations
from diffuserve.models.layers.segments import CrossSegments, Segments
from diffuserve.models.machine.devices import to_device


@dataclass(frozen=True)
class ClipShape:
    """The tokens of a sequence: `frames` latent frames of `rows` × `columns`, and what it attends to.

    `text` counts the tokens of the prompt and `padding` the zeros after them, `image` the embeddings of an
    image. `has_first_frame`: the first latent frame has a factor row of its own, before that of the others.
    """

    frames: int
    rows: int
    columns: int
    text: int
    padding: int = 0
    image: int = 0
    has_first_frame: bool = False

    @property
    def tokens(self) -> int:
        return self.frames * self.rows * self.columns

    @property
    def text_rows(self) -> int:
        """The rows of the prompt, with the one that stands for its padding."""
        return self.text + min(1, self.padding)

    @property
    def factor_rows(self) -> tuple[int, ...]:
        """The tokens of each of the sequence's factor rows."""
        if not self.has_first_frame:
            return (self.tokens,)
        first = self.rows * self.columns
        return (first, self.tokens - first)


@dataclass(frozen=True)
class ClipLayout:
    """The grouping of tokens: sequences for attention, and tokens with equal factors.

    `text` and `image` are the keys of cross-attention; `image` is `None` for models without it.
    """

    segments: Segments
    factors: Segments
    text: CrossSegments
    image: CrossSegments | None
    rotation: Complex64[Tensor, "tokens half"]


@dataclass(frozen=True)
class ClipAdapters:
    """The adapters of the packed rows of a pass; `None` where no request has any."""

    tokens: RowAdapters | None = None
    factors: RowAdapters | None = None
    text: RowAdapters | None = None
    image: RowAdapters | None = None

    @classmethod
    def of(cls, shapes: Sequence[ClipShape], uses: Sequence[Uses]) -> "ClipAdapters":
        """Return the adapters of sequences with these shapes."""
        rows = ((each.tokens, len(each.factor_rows), each.text_rows, each.image) for each in shapes)
        return cls(*(RowAdapters.of(lengths, uses) for lengths in zip(*rows, strict=True)))

    def part(self, tokens: range) -> "ClipAdapters":
        """Return those of some tokens, and of all else."""
        return replace(self, tokens=None if self.tokens is None else self.tokens.part(tokens))


NO_CLIP_ADAPTERS = ClipAdapters()


class Layouts:
    """Builds the layouts of batches for one model, and keeps the last few."""

    def __init__(self, config: WanTransformerConfig, device: torch.device) -> None:
        self._config, self._device = config, device
        self.layout_of = lru_cache(maxsize=8)(self._layout_of)

    def _layout_of(self, shapes: tuple[ClipShape, ...]) -> ClipLayout:
        return pack_layout(shapes, self._config, self._device)


def pack_layout(
    shapes: Sequence[ClipShape], config: WanTransformerConfig, device: torch.device
) -> ClipLayout:
    """Build the layout of sequences in this order."""
    lengths = tuple(shape.tokens for shape in shapes)
    factor_rows = tuple(count for shape in shapes for count in shape.factor_rows)
    return ClipLayout(
        segments=Segments.of(lengths, device),
        factors=Segments.of(factor_rows, device),
        text=text_segments(shapes, lengths, device),
        image=None if config.image_dim is None else image_segments(shapes, lengths, device),
        rotation=to_device(torch.cat([_rotation(shape, config.axes_dims) for shape in shapes]), device),
    )


def text_segments(shapes: Sequence[ClipShape], queries: Sequence[int], device: torch.device) -> CrossSegments:
    """Return the prompts' keys for sequences that have these numbers of `queries`."""
    text, padding = [shape.text for shape in shapes], [shape.padding for shape in shapes]
    return CrossSegments.of(queries, text, padding, device)


def image_segments(
    shapes: Sequence[ClipShape], queries: Sequence[int], device: torch.device
) -> CrossSegments:
    """Return the images' keys for sequences that have these numbers of `queries`."""
    return CrossSegments.of(queries, [shape.image for shape in shapes], [0] * len(shapes), device)


def _rotation(shape: ClipShape, axes_dims: tuple[int, int, int]) -> Complex64[Tensor, "tokens half"]:
    """Return a sequence's rotations: frames, rows and columns are counted from 0."""
    sides = (shape.frames, shape.rows, shape.columns)
    axes = []
    for axis, (side, dim) in enumerate(zip(sides, axes_dims, strict=True)):
        turned = rotations(torch.arange(side, dtype=torch.float32)[:, None], (dim,))
        place = [side if index == axis else 1 for index in range(3)]
        axes.append(turned.view(*place, -1).expand(*sides, -1))
    return torch.cat(axes, dim=-1).flatten(0, 2)


def patchify(
    latents: Float[Tensor, "1 channels frames height width"], patch_size: tuple[int, int, int]
) -> Float[Tensor, "tokens inputs"]:
    """Return the tokens of a clip's latents."""
    frames, rows, columns = patch_size
    pattern = "1 c (f pf) (h ph) (w pw) -> (f h w) (c pf ph pw)"
    return rearrange(latents, pattern, pf=frames, ph=rows, pw=columns)


def unpatchify(
    tokens: Float[Tensor, "tokens outputs"], shape: ClipShape, patch_size: tuple[int, int, int]
) -> Float[Tensor, "1 channels frames height width"]:
    """Return the latents of predicted tokens, whose channels are in another order than those of inputs."""
    frames, rows, columns = patch_size
    return rearrange(
        tokens,
        "(f h w) (pf ph pw c) -> 1 c (f pf) (h ph) (w pw)",
        f=shape.frames,
        h=shape.rows,
        w=shape.columns,
        pf=frames,
        ph=rows,
        pw=columns,
    )
