"""Blocks that the encoder and the decoder of `AutoencoderKL` share.

The reference implementation is diffusers': operations keep its order, so that results are equal to the last
bit, and parameters keep the names of its checkpoints.
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from diffuserve.models.layers.strips.strips import (
    ConvolvedRows,
    FeatureRows,
    PointRows,
    RememberedRows,
    StoredRows,
    Strips,
)
from diffuserve.models.weights.loading import Placement, tensor_names

Features = Float[Tensor, "batch channels height width"]
Pixels = Float[Tensor, "batch colors pixel_rows pixel_columns"]

EPSILON = 1e-6
_OLD_NAMES = {".to_q.": ".query.", ".to_k.": ".key.", ".to_v.": ".value.", ".to_out.0.": ".proj_attn."}


def placements(module: nn.Module, files: Iterable[Path]) -> dict[str, Placement]:
    """Return the parameters of a module by a checkpoint's names: those of attention have older ones."""
    is_old = any(".query." in name for name in tensor_names(files))
    parameters = [name for name, _ in module.named_parameters()]
    return {_old_name(name) if is_old else name: Placement(name) for name in parameters}


def _old_name(parameter: str) -> str:
    for name, old_name in _OLD_NAMES.items():
        parameter = parameter.replace(name, old_name)
    return parameter


class ResidualBlock(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, width_before: int, width: int, groups: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, width_before, eps=EPSILON)
        self.conv1 = conv(width_before, width)
        self.norm2 = nn.GroupNorm(groups, width, eps=EPSILON)
        self.conv2 = conv(width, width)
        self.conv_shortcut = nn.Conv2d(width_before, width, 1) if width_before != width else nn.Identity()

    def forward(self, features: Features) -> Float[Tensor, "batch channels2 height width"]:
        hidden = self.conv1(F.silu(self.norm1(features)))
        hidden = self.conv2(F.silu(self.norm2(hidden)))
        features = self.conv_shortcut(features) + hidden
        return features

    def in_strips(self, rows: FeatureRows, strips: Strips) -> StoredRows:
        """Return the block's output; it takes the place of its input where that is stored."""
        seen = rows if isinstance(rows, StoredRows) else RememberedRows(rows)
        keeps = isinstance(self.conv_shortcut, nn.Identity)
        hidden, kept = strips.store(
            ConvolvedRows(activated(seen, self.norm1, strips), without_padding_rows(self.conv1)),
            seen if keeps else PointRows(seen, self.conv_shortcut),
        )
        convolved = ConvolvedRows(activated(hidden, self.norm2, strips), without_padding_rows(self.conv2))
        return strips.add(kept, convolved)


class MidBlock(nn.Module):
    """Two residual blocks, with attention between them if the checkpoint has it."""

    def __init__(self, width: int, groups: int, has_attention: bool) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(ResidualBlock(width, width, groups) for _ in range(2))
        self.attentions = nn.ModuleList([_Attention(width, groups)] if has_attention else [])

    def forward(self, features: Features) -> Features:
        first, second = self.resnets
        features = first(features)
        for attention in self.attentions:
            features = attention(features)
        return second(features)

    def in_strips(self, features: Features, strips: Strips) -> StoredRows:
        """Return the rows of this rank's slab; all positions attend to all, and every rank has their keys."""
        first, second = self.resnets
        assert isinstance(second, ResidualBlock)
        features, slab = first(features), strips.slabs.own(features.shape[2])
        for attention in self.attentions:
            assert isinstance(attention, _Attention)
            features = attention.of_rows(features, slab)
        if not self.attentions:
            features = features[:, :, slab.start : slab.stop]
        return second.in_strips(strips.begin(features), strips)


class _Attention(nn.Module):
    """Self-attention of all positions with a single head."""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.group_norm = nn.GroupNorm(groups, width, eps=EPSILON)
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(width, width)])

    def forward(self, features: Features) -> Features:
        return self.of_rows(features, range(features.shape[2]))

    def of_rows(self, features: Features, rows: range) -> Float[Tensor, "batch channels wanted_rows width"]:
        """Return the output for some rows."""
        batch, channels, height, width = features.shape
        positions = self.group_norm(features.view(batch, channels, height * width)).transpose(1, 2)
        wanted = positions[:, rows.start * width : rows.stop * width]
        pairs = ((self.to_q, wanted), (self.to_k, positions), (self.to_v, positions))
        heads = [project(read)[:, None] for project, read in pairs]
        attended = self.to_out[0](F.scaled_dot_product_attention(*heads)[:, 0])
        before = features[:, :, rows.start : rows.stop]
        return attended.transpose(1, 2).reshape(before.shape) + before


def conv(width_before: int, width: int) -> nn.Conv2d:
    """Return a 3×3 convolution that keeps height and width."""
    return nn.Conv2d(width_before, width, 3, padding=1)


def activated(rows: FeatureRows, norm: nn.GroupNorm, strips: Strips) -> FeatureRows:
    """Return rows normalized, and SiLU of them."""
    return PointRows(strips.normalized(rows, norm), F.silu)


def without_padding_rows(conv: nn.Conv2d) -> Callable[[Tensor], Tensor]:
    """Return a 3×3 convolution that pads the sides alone."""
    return partial(F.conv2d, weight=conv.weight, bias=conv.bias, padding=(0, 1))
