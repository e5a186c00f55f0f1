"""Feature maps computed in strips of rows, so that a few whole maps are in memory, and nothing beside them.

A convolution needs only the rows beside its own, and a norm of the whole map only its means and variances,
which are taken in a pass of their own. So a map that is computed in strips is the one that is computed whole,
but for rounding: nothing is blended, and there are no seams. Strips depend on the size alone.

Several ranks may share an image: each then holds a slab of its rows, and sees those of its neighbors that
adjoin it. Distributed so, decoders of diffusion models are known from DistVAE (Tencent's xDiT).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from diffuserve.models.layers.strips.slabs import Slabs
from diffuserve.models.layers.strips.strip_sizes import strip_rows

Features = Float[Tensor, "_batch _channels _rows _width"]

DECODER_ENTRIES = ("forward", "decode_in_strips")
"""Methods of a decoder that read its weights."""
_CACHED_SCALARS = 1 << 20


class FeatureRows(ABC):
    """Rows of a feature map, computed as they are read.

    It has `num_rows`. At the edges of the image (`at_top`, `at_bottom`) it ends; elsewhere one may read
    beyond it, as far as convolutions in between leave some of the neighbors' rows. `row_scalars` are those of
    the widest row that is computed on the way.
    """

    num_rows: int
    row_scalars: int
    at_top: bool
    at_bottom: bool
    device: torch.device

    @abstractmethod
    def read(self, start: int, stop: int) -> Features:
        """Return rows from `start` up to, but not including, `stop`."""

    def strips(self) -> Iterator[tuple[int, int]]:
        """Yield the first row of each strip, and the one after its last."""
        size = strip_rows(self.row_scalars, self.device.type == "cpu")
        for start in range(0, self.num_rows, size):
            yield start, min(start + size, self.num_rows)


class StoredRows(FeatureRows):
    """Rows in memory, with the neighbors' rows that adjoin them."""

    def __init__(self, own: Features, above: Features | None = None, below: Features | None = None) -> None:
        self.num_rows, self.row_scalars, self.device = own.shape[2], own[:, :, 0].numel(), own.device
        self.at_top, self.at_bottom = above is None, below is None
        self.own, self._above, self._below = own, above, below

    def read(self, start: int, stop: int) -> Features:
        parts = [self.own[:, :, max(start, 0) : stop]]
        if start < 0:
            assert self._above is not None
            parts.insert(0, self._above)
        if stop > self.num_rows:
            assert self._below is not None
            parts.append(self._below)
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


class ComputedRows(FeatureRows):
    """Rows that are computed of those of a `source`, each of `enlarged` times as many."""

    def __init__(self, source: FeatureRows, enlarged: int = 1) -> None:
        self.num_rows, self.row_scalars = enlarged * source.num_rows, enlarged * source.row_scalars
        self.at_top, self.at_bottom, self.device = source.at_top, source.at_bottom, source.device
        self._source = source


class PointRows(ComputedRows):
    """Rows of a function of each position by itself."""

    def __init__(self, source: FeatureRows, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__(source)
        self._function = function

    def read(self, start: int, stop: int) -> Features:
        return self._function(self._source.read(start, stop))


class UpsampledRows(ComputedRows):
    """Rows of a map of twice the height and width; `enlarge` makes four positions of each."""

    def __init__(self, source: FeatureRows, enlarge: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__(source, enlarged=2)
        self._enlarge = enlarge or _repeat

    def read(self, start: int, stop: int) -> Features:
        first = start // 2
        rows = self._enlarge(self._source.read(first, -(-stop // 2)))
        return rows[:, :, start - 2 * first : stop - 2 * first]


class ConvolvedRows(ComputedRows):
    """Rows of a convolution that keeps height and width, and that sees `margin` rows beside its own.

    `convolve` pads the sides alone.
    """

    def __init__(self, source: FeatureRows, convolve: Callable[[Tensor], Tensor], margin: int = 1) -> None:
        super().__init__(source)
        self._convolve, self._margin = convolve, margin

    def read(self, start: int, stop: int) -> Features:
        return self._convolve(self._seen(start, stop))

    def _seen(self, start: int, stop: int) -> Features:
        """Return the rows that the convolution sees; beyond the image's edges they are zeros."""
        above, below = start - self._margin, stop + self._margin
        first = max(above, 0) if self.at_top else above
        last = min(below, self.num_rows) if self.at_bottom else below
        rows = self._source.read(first, last)
        return F.pad(rows, (0, 0, first - above, below - last)) if (first, last) != (above, below) else rows


class RememberedRows(ComputedRows):
    """Rows that several others read, strip by strip: what was read last is not computed again."""

    def __init__(self, source: FeatureRows) -> None:
        super().__init__(source)
        self._start, self._stop, self._last = 0, 0, torch.empty(0)

    def read(self, start: int, stop: int) -> Features:
        if not self._start <= start < stop <= self._stop:
            self._start, self._stop, self._last = start, stop, self._source.read(start, stop)
        return self._last[:, :, start - self._start : stop - self._start]


class Strips:
    """Stores rows strip by strip, each rank those of its slab."""

    def __init__(self, slabs: Slabs) -> None:
        self.slabs = slabs

    def begin(self, slab: Features) -> StoredRows:
        """Return the rows of a slab, of which neighbors have not been told yet."""
        return self._with_neighbors(slab)

    def store(self, *sources: FeatureRows) -> list[StoredRows]:
        """Return rows of equally many strips in memory; those that were stored already stay as they are."""
        wanted = [source for source in sources if not isinstance(source, StoredRows)]
        maps: list[Tensor] = []
        for start, stop in wanted[0].strips():
            strips = [source.read(start, stop) for source in wanted]
            maps = maps or [empty_rows(strip, wanted[0].num_rows) for strip in strips]
            for each, strip in zip(maps, strips, strict=True):
                each[:, :, start:stop] = strip
        stored = iter(self._with_neighbors(each) for each in maps)
        return [source if isinstance(source, StoredRows) else next(stored) for source in sources]

    def add(self, kept: StoredRows, rows: FeatureRows) -> StoredRows:
        """Add rows to stored ones, whose memory holds the sum."""
        for start, stop in rows.strips():
            kept.own[:, :, start:stop] += rows.read(start, stop)
        return self._with_neighbors(kept.own)

    def normalized(self, rows: FeatureRows, norm: nn.GroupNorm) -> FeatureRows:
        """Return rows normalized in groups of channels, after a pass over all rows for their statistics."""
        mean, variance = self._statistics(rows, norm.num_groups)
        scale = norm.weight.double() / (variance + norm.eps).sqrt()
        shift = norm.bias.double() - mean * scale
        factor, offset = (each.float()[:, :, None, None] for each in (scale, shift))
        return PointRows(rows, lambda strip: (strip * factor).add_(offset).to(strip.dtype))

    def _statistics(self, rows: FeatureRows, groups: int) -> Float[Tensor, "2 batch channels"]:
        """Return the mean and the variance of each channel's group over all rows of all ranks."""
        parts = [part for start, stop in rows.strips() for part in _moments(rows.read(start, stop))]
        counts, moments = zip(*parts, strict=True)
        own = _combined(moments[0].new_tensor(counts), torch.stack(moments))
        every = self.slabs.gather(torch.cat([own.new_tensor([rows.num_rows]), own.flatten()]))
        of_ranks = _combined(every[:, 0], every[:, 1:].unflatten(1, own.shape))
        channels = of_ranks.unflatten(2, (groups, -1)).movedim(3, 0)
        return _combined(own.new_ones(len(channels)), channels).repeat_interleave(len(channels), dim=2)

    def _with_neighbors(self, own: Features) -> StoredRows:
        return StoredRows(own, *self.slabs.adjoining(own))


def _moments(strip: Features) -> Iterator[tuple[int, Float[Tensor, "2 batch channels"]]]:
    """Yield the number of rows of each part of a strip, and the means and variances of its channels.

    On a CPU parts fit into its cache.
    """
    size = max(1, _CACHED_SCALARS // strip[:, :, 0].numel()) if strip.device.type == "cpu" else strip.shape[2]
    for part in strip.split(size, dim=2):
        positions = part.permute(0, 2, 3, 1).flatten(1, 2).float()
        mean = positions.mean(dim=1, keepdim=True)
        variance = (positions - mean).square_().mean(dim=1)
        yield part.shape[2], torch.stack([mean[:, 0], variance]).double()


def _combined(
    counts: Float[Tensor, "parts"], moments: Float[Tensor, "parts 2 batch channels"]
) -> Float[Tensor, "2 batch channels"]:
    """Return the means and variances of parts of so many values together (Chan, Golub and LeVeque 1979)."""
    shares = (counts / counts.sum()).view(-1, 1, 1)
    means, variances = moments.unbind(1)
    mean = (shares * means).sum(dim=0)
    variance = (shares * (variances + (means - mean).square())).sum(dim=0)
    return torch.stack([mean, variance])


def empty_rows(like: Features, num_rows: int) -> Features:
    """Return memory for so many rows that are otherwise like the given ones, channels-last."""
    size = (*like.shape[:2], num_rows, like.shape[3])
    return torch.empty(size, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _repeat(rows: Features) -> Features:
    return F.interpolate(rows, scale_factor=2.0, mode="nearest")
