"""Blocks that the encoder and the decoder of Wan's video autoencoder share.

The reference implementation is diffusers' `AutoencoderKLWan`; parameters keep the names of its checkpoints.
Features are frames of one clip, (frames, channels, height, width) and channels-last, so that each operation
on single frames is one of images. Convolutions over time see the last two frames before a chunk, which a
`FrameCache` keeps.
"""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from diffuserve.models.layers.strips.strips import (
    ConvolvedRows,
    FeatureRows,
    PointRows,
    StoredRows,
    Strips,
    empty_rows,
)
from diffuserve.models.video_autoencoder.config import MAX_STACKED, TAPS, VideoVaeConfig
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import Placement, load_weights

M = TypeVar("M", bound=nn.Module)
Features = Float[Tensor, "_frames _channels _height _width"]  # sizes change from block to block
FrameCache = dict[nn.Module, Tensor]
"""The last two frames that each convolution over time has seen of a clip; empty before the first chunk."""


class CausalConv(nn.Module):
    """A convolution over a frame and the two before it; before the first frame there are zeros.

    It is computed as a 2D convolution over the channels of all three frames, which in float32 on CPUs is
    1.2-5 times faster than a 3D convolution. A clip's first frame uses only its own third of the weight.
    """

    def __init__(self, width_before: int, width: int, kernel: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, width_before, TAPS, kernel, kernel))
        self.bias = nn.Parameter(torch.empty(width))
        self._stride, self.padding = stride, kernel // 2

    def prepare(self) -> None:
        """Convert the loaded weight to the layout that `forward` reads."""
        stacked = self.weight.data.transpose(1, 2).flatten(1, 2)
        stacked = stacked.contiguous(memory_format=torch.channels_last)
        self.weight = nn.Parameter(stacked, requires_grad=False)

    def forward(self, frames: Features, cache: FrameCache | None) -> Features:
        """Convolve the next frames of a clip, or without a cache the first frames of several."""
        before = None if cache is None else cache.get(self)
        if cache is not None:
            cache[self] = _last_two(before, frames)
        if before is None:
            return self.first(frames)
        return self.over_time(torch.cat([before, frames]))

    def in_strips(self, rows: FeatureRows, cache: FrameCache | None) -> FeatureRows:
        """Return the rows of the next frames of a clip; its cache has one further row at each end."""
        if cache is None:
            return ConvolvedRows(rows, partial(self.first, row_padding=0), self.padding)
        return _CausalRows(rows, self, cache)

    def first(self, frames: Features, row_padding: int | None = None) -> Features:
        """Convolve first frames, which have no frames before them."""
        own = self.weight[:, -frames.shape[1] :]
        return F.conv2d(frames, own, self.bias, padding=self._paddings(row_padding))

    def over_time(self, frames: Features, row_padding: int | None = None) -> Features:
        """Convolve each frame except the first two, or each `stride`-th, with the two before it."""
        count = (frames.shape[0] - TAPS) // self._stride + 1
        at_once = max(1, MAX_STACKED // (TAPS * frames[0].numel()))
        paddings = self._paddings(row_padding)
        if at_once >= count:
            return self._stacked(frames, 0, count, paddings)
        rows, width = frames.shape[2] - 2 * (self.padding - paddings[0]), frames.shape[3]
        result = frames.new_empty(count, rows, width, self.weight.shape[0]).permute(0, 3, 1, 2)
        for start in range(0, count, at_once):
            stop = min(start + at_once, count)
            result[start:stop] = self._stacked(frames, start, stop, paddings)
        return result

    def _paddings(self, row_padding: int | None) -> tuple[int, int]:
        return (self.padding if row_padding is None else row_padding, self.padding)

    def _stacked(self, frames: Features, start: int, stop: int, paddings: tuple[int, int]) -> Features:
        stride = self._stride
        taps = [frames[tap + start * stride : tap + (stop - 1) * stride + 1 : stride] for tap in range(TAPS)]
        return F.conv2d(torch.cat(taps, dim=1), self.weight, self.bias, padding=paddings)


class _CausalRows(ConvolvedRows):
    """Rows of a convolution over time, which replaces what it keeps of a clip's last frames as it goes."""

    def __init__(self, source: FeatureRows, conv: CausalConv, cache: FrameCache) -> None:
        super().__init__(source, conv.first, conv.padding)
        self._conv, self._cache, self._before = conv, cache, cache.get(conv)

    def read(self, start: int, stop: int) -> Features:
        frames = self._seen(start, stop)
        kept = slice(start - self._margin + 1, stop + self._margin + 1)
        before = None if self._before is None else self._before[:, :, kept]
        self._keep(_last_two(before, frames), kept)
        if before is None:
            return self._conv.first(frames, row_padding=0)
        return self._conv.over_time(torch.cat([before, frames]), row_padding=0)

    def _keep(self, last: Features, kept: slice) -> None:
        if self._cache.get(self._conv) is self._before:
            self._cache[self._conv] = empty_rows(last, self.num_rows + 2)
        self._cache[self._conv][:, :, kept] = last


def _last_two(before: Features | None, frames: Features) -> Features:
    if frames.shape[0] >= 2:
        return frames[-2:].clone(memory_format=torch.preserve_format)
    earlier = torch.zeros_like(frames) if before is None else before[-1:]
    return torch.cat([earlier, frames])


class PointConv(nn.Module):
    """A convolution of single pixels."""

    def __init__(self, width_before: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, width_before, 1, 1, 1))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, frames: Features) -> Features:
        return F.conv2d(frames, self.weight[:, :, 0], self.bias)


class RmsNorm(nn.Module):
    """Norm of each pixel's channels, computed in float32."""

    def __init__(self, width: int, num_dims: int = 3) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.empty(width, *[1] * num_dims))

    def forward(self, frames: Features) -> Features:
        normalized = F.normalize(frames.float(), dim=1).to(frames.dtype)
        return normalized.mul_(math.sqrt(frames.shape[1])).mul_(self.gamma.view(-1, 1, 1))


class VideoResidualBlock(nn.Module):
    """Two convolutions over time beside a shortcut."""

    def __init__(self, width_before: int, width: int) -> None:
        super().__init__()
        self.norm1 = RmsNorm(width_before)
        self.conv1 = CausalConv(width_before, width)
        self.norm2 = RmsNorm(width)
        self.conv2 = CausalConv(width, width)
        self.conv_shortcut = PointConv(width_before, width) if width_before != width else nn.Identity()

    def forward(self, frames: Features, cache: FrameCache | None) -> Features:
        hidden = self.conv1(activated(self.norm1, frames), cache)
        hidden = self.conv2(activated(self.norm2, hidden), cache)
        return hidden.add_(self.conv_shortcut(frames))

    def in_strips(self, rows: StoredRows, strips: Strips, cache: FrameCache | None) -> StoredRows:
        """Return the block's output; it takes the place of its input where both have the same width."""
        keeps = isinstance(self.conv_shortcut, nn.Identity)
        hidden, kept = strips.store(
            self.conv1.in_strips(PointRows(rows, partial(activated, self.norm1)), cache),
            rows if keeps else PointRows(rows, self.conv_shortcut),
        )
        return strips.add(
            kept, self.conv2.in_strips(PointRows(hidden, partial(activated, self.norm2)), cache)
        )


class VideoMidBlock(nn.Module):
    """Two residual blocks with attention between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(VideoResidualBlock(width, width) for _ in range(2))
        self.attentions = nn.ModuleList([_Attention(width)])

    def forward(self, frames: Features, cache: FrameCache | None) -> Features:
        first, second = self.resnets
        return second(self.attentions[0](first(frames, cache)), cache)

    def in_strips(self, frames: Features, strips: Strips, cache: FrameCache | None) -> StoredRows:
        """Return the rows of this rank's slab; all positions attend to all, and every rank has their keys."""
        (first, second), attention = self.resnets, self.attentions[0]
        assert isinstance(second, VideoResidualBlock)
        assert isinstance(attention, _Attention)
        attended = attention.of_rows(first(frames, cache), strips.slabs.own(frames.shape[2]))
        return second.in_strips(strips.begin(attended), strips, cache)


class _Attention(nn.Module):
    """Self-attention of all positions of a frame with a single head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = RmsNorm(width, num_dims=2)
        self.to_qkv = nn.Conv2d(width, 3 * width, 1)
        self.proj = nn.Conv2d(width, width, 1)

    def forward(self, frames: Features) -> Features:
        return self.of_rows(frames, range(frames.shape[2]))

    def of_rows(self, frames: Features, rows: range) -> Features:
        """Return the output for some rows."""
        positions = self.to_qkv(self.norm(frames)).flatten(2).transpose(1, 2)[:, None]
        before, width = frames[:, :, rows.start : rows.stop], frames.shape[3]
        queries, keys, values = positions.chunk(3, dim=-1)
        queries = queries[:, :, rows.start * width : rows.stop * width]
        attended = F.scaled_dot_product_attention(queries, keys, values)
        return self.proj(attended[:, 0].transpose(1, 2).unflatten(2, before.shape[2:])).add_(before)


def activated(norm: RmsNorm, frames: Features) -> Features:
    """Return SiLU of normalized frames."""
    return F.silu(norm(frames), inplace=True)


def load_part(
    part: Callable[[VideoVaeConfig], M],
    config: VideoVaeConfig,
    files: list[Path],
    plan: LoadPlan,
    *,
    others: tuple[str, ...],
) -> M:
    """Load a part of `AutoencoderKLWan`, channels-last; tensors named like `others` are of another part."""
    with torch.device("meta"):
        module = part(config)
    placements = {name: Placement(name) for name, _ in module.named_parameters()}
    load_weights(module, files, placements, plan, ignored_prefixes=others)
    for layer in module.modules():
        if isinstance(layer, CausalConv):
            layer.prepare()
        elif isinstance(layer, nn.Conv2d):
            layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    module.eval()
    return module
