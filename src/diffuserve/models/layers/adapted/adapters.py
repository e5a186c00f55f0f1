"""Low-rank adapters of requests over packed rows (LoRA, Hu et al. 2021, arXiv:2106.09685).

    y[rows, columns] += weight · ((x[rows] · down) · up + bias)

Requests of one pass may have different adapters, or none: each adapter is added to the rows of those that
use it. Which row a layer reads is fixed by its place, so adapters are arguments of layers: forgetting one is
an error of types or of a test, and no step runs without it in silence.
"""

from collections.abc import Hashable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class Delta:
    """What an adapter of weight 1 adds to the columns of a product from `first` on.

    Several layers of a checkpoint may be one product here, side by side: each has columns of its own.
    """

    down: Float[Tensor, "in rank"]
    up: Float[Tensor, "rank columns"]
    first: int = 0
    bias: Float[Tensor, "columns"] | None = None

    @property
    def columns(self) -> slice:
        return slice(self.first, self.first + self.up.shape[1])

    @property
    def rank(self) -> int:
        return self.down.shape[1]

    @property
    def num_bytes(self) -> int:
        return self.down.nbytes + self.up.nbytes + (0 if self.bias is None else self.bias.nbytes)


@dataclass(frozen=True)
class ConvolutionDelta:
    """What an adapter of weight 1 adds to a convolution: one with the layer's kernel, then one of 1 x 1."""

    down: Float[Tensor, "rank in height width"]
    up: Float[Tensor, "out rank 1 1"]
    bias: Float[Tensor, "out"] | None = None

    @property
    def num_bytes(self) -> int:
        return self.down.nbytes + self.up.nbytes + (0 if self.bias is None else self.bias.nbytes)


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter in a device's memory: its deltas by the name of the layer. Adapters equal only themselves.

    `convolutions` are those of convolutions, of which each has one. Its `key` tells it from all others, even
    from a later one of the same name, and keeps no tensors. If it `changes_prompts`, some of its layers
    encode them.
    """

    name: str
    deltas: Mapping[str, Sequence[Delta]]
    key: object = field(default_factory=object)
    changes_prompts: bool = False
    convolutions: Mapping[str, ConvolutionDelta] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        linear = sum(each.num_bytes for deltas in self.deltas.values() for each in deltas)
        return linear + sum(each.num_bytes for each in self.convolutions.values())


Uses = tuple[tuple[Adapter, float], ...]
"""The adapters of a request, each with its weight."""


def of_prompts(uses: Uses) -> Uses:
    """Return those that change how prompts are encoded."""
    return tuple((adapter, weight) for adapter, weight in uses if adapter.changes_prompts)


def key_of(uses: Uses) -> Hashable:
    """Return a key that only equal adapters with equal weights have; it keeps no tensors."""
    return tuple((adapter.key, weight) for adapter, weight in uses)


@dataclass(frozen=True)
class AdaptedRows:
    """Rows of a layer's input from `start` up to `stop`, and what is added to their product."""

    start: int
    stop: int
    deltas: tuple[tuple[Delta, float], ...] = ()

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)


@dataclass(frozen=True)
class AdapterRun:
    """Rows from `start` up to `stop` of requests that use the same adapters."""

    start: int
    stop: int
    uses: Uses


@dataclass(frozen=True)
class Masks:
    """The weights of channels between two products, by row, and where a row has no part in one."""

    weights: Float[Tensor, "rows channels"]
    others: Bool[Tensor, "rows channels"]


@dataclass(frozen=True)
class RowAdapters:
    """The adapters of the rows of a packed row. Runs are in order, and rows outside them have none.

    `masks` are kept for layers that stack them, and `multiples` for those over several positions a row.
    """

    runs: tuple[AdapterRun, ...]
    masks: MutableMapping[Hashable, Masks] = field(default_factory=dict, compare=False, repr=False)
    multiples: "MutableMapping[int, RowAdapters]" = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, lengths: Sequence[int], uses: Sequence[Uses]) -> "RowAdapters | None":
        """Return the adapters of sequences with these lengths, one after another; `None` if none has any."""
        runs, start = list[AdapterRun](), 0
        for length, own in zip(lengths, uses, strict=True):
            before, stop = runs[-1] if runs else None, start + length
            if before is not None and before.stop == start and before.uses == own:
                runs[-1] = AdapterRun(before.start, stop, own)
            elif own and length:
                runs.append(AdapterRun(start, stop, own))
            start = stop
        return cls(tuple(runs)) if runs else None

    def part(self, rows: range) -> "RowAdapters | None":
        """Return those of some rows, which are counted from 0 then; `None` if none has any."""
        runs = _part(self, rows, 0)
        return RowAdapters(runs) if runs else None

    def times(self, count: int) -> "RowAdapters":
        """Return those of rows that are `count` times as many: each stands for so many in its place."""
        if count == 1:
            return self
        if count not in self.multiples:
            runs = (AdapterRun(count * run.start, count * run.stop, run.uses) for run in self.runs)
            self.multiples[count] = RowAdapters(tuple(runs))
        return self.multiples[count]

    def on(self, layer: str) -> list[AdaptedRows]:
        """Return the rows to which something is added in a layer."""
        found = (AdaptedRows(run.start, run.stop, tuple(_deltas(run.uses, layer))) for run in self.runs)
        return [each for each in found if each.deltas]


@dataclass(frozen=True)
class PassAdapters:
    """The adapters of the packed rows of a pass; `None` where no request has any."""

    text: RowAdapters | None = None
    image: RowAdapters | None = None
    joint: RowAdapters | None = None

    @classmethod
    def of(cls, text: Sequence[int], image: Sequence[int], uses: Sequence[Uses]) -> "PassAdapters":
        """Return the adapters of sequences with these numbers of tokens, of which the text's are first."""
        joint = [sum(both) for both in zip(text, image, strict=True)]
        return cls(*(RowAdapters.of(lengths, uses) for lengths in (text, image, joint)))

    def part(self, text: range, image: range) -> "PassAdapters":
        """Return those of some tokens of each row, whose joint row is the text's, then the image's."""
        of_text, of_image = _part(self.text, text, 0), _part(self.image, image, 0)
        joint = (*of_text, *_part(self.image, image, len(text)))
        return PassAdapters(*(RowAdapters(runs) if runs else None for runs in (of_text, of_image, joint)))

    @property
    def are_none(self) -> bool:
        return self.joint is None


NO_ADAPTERS = PassAdapters()


def with_others(adapted: Sequence[AdaptedRows], num_rows: int) -> Iterator[AdaptedRows]:
    """Yield all rows in order: those that are adapted, and those between them, to which nothing is added."""
    start = 0
    for each in adapted:
        if start < each.start:
            yield AdaptedRows(start, each.start)
        yield each
        start = each.stop
    if start < num_rows:
        yield AdaptedRows(start, num_rows)


def _part(adapters: RowAdapters | None, rows: range, first: int) -> tuple[AdapterRun, ...]:
    """Return the runs of some rows, which are counted from `first` then."""
    runs, shift = () if adapters is None else adapters.runs, first - rows.start
    cut = (AdapterRun(max(run.start, rows.start), min(run.stop, rows.stop), run.uses) for run in runs)
    return tuple(
        AdapterRun(run.start + shift, run.stop + shift, run.uses) for run in cut if run.start < run.stop
    )


def _deltas(uses: Uses, layer: str) -> Iterator[tuple[Delta, float]]:
    for adapter, weight in uses:
        for delta in adapter.deltas.get(layer, ()):
            yield delta, weight
