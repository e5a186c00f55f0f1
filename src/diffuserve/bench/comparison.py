"""Servers beside the first one, as ratios of each round: what drifts between rounds is in both."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from diffuserve.bench.figures import Figures
from diffuserve.bench.running import BenchRun, Measured
from diffuserve.bench.targets import Address

_Figure = Callable[[Figures], float | None]


def _percentile(percent: int) -> _Figure:
    return lambda figures: figures.latency.percentiles[percent] if figures.latency else None


COMPARED: Mapping[str, _Figure] = {
    "images/s": lambda figures: figures.output_throughput,
    "p50": _percentile(50),
    "p95": _percentile(95),
    "p99": _percentile(99),
    "goodput/s": lambda figures: figures.goodput,
}


@dataclass(frozen=True)
class Ratio:
    """A figure over the first server's, by round: the median, the lowest and the highest."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        spread = "" if self.low == self.high else f" ({self.low:.2f}-{self.high:.2f})"
        return f"{self.median:.2f}x{spread}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A server beside the first one. What no round has on both sides is left out."""

    address: Address
    beside: Address
    num_rounds: int
    ratios: Mapping[str, Ratio]


def comparisons_of(run: BenchRun) -> list[Comparison]:
    """Return each further server beside the first; nothing of a sweep, whose rates differ."""
    addresses = list(dict.fromkeys(each.address for each in run.measured))
    if run.is_sweep or len(addresses) < 2:
        return []
    first, *others = addresses
    return [_compared(other, run.of(other), first, run.of(first)) for other in others]


def _compared(
    address: Address, measured: Sequence[Measured], first: Address, beside: Sequence[Measured]
) -> Comparison:
    by_round = {each.round_number: each.figures for each in beside if not each.is_interrupted}
    pairs = [
        (each.figures, by_round[each.round_number])
        for each in measured
        if each.round_number in by_round and not each.is_interrupted
    ]
    found = {name: _ratio(figure, pairs) for name, figure in COMPARED.items()}
    return Comparison(
        address=address,
        beside=first,
        num_rounds=len(pairs),
        ratios={name: ratio for name, ratio in found.items() if ratio},
    )


def _ratio(figure: _Figure, pairs: Sequence[tuple[Figures, Figures]]) -> Ratio | None:
    values = [
        own / first
        for figures, first_figures in pairs
        if (own := figure(figures)) and (first := figure(first_figures))
    ]
    return Ratio(statistics.median(values), min(values), max(values)) if values else None
