"""A plot, as SVG, of seconds to an image over the load, for each way of batching."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.engine.plot_frame import LEFT, TOP, PlotFrame, ticks

_FRAME = PlotFrame(height=340)
_TITLE = "Seconds to an image over images a second; dashed: 95th percentile"
_COLORS = ("#7f7f7f", "#0050c8")
_NUM_TICKS = 4


@dataclass(frozen=True)
class LoadPoint:
    """Seconds to an image in one way at a rate: the median, and the 95th percentile."""

    way: str
    share: float
    rate: float
    p50_seconds: float
    p95_seconds: float


def plotted(points: Sequence[LoadPoint]) -> str:
    """Return a line for the median of each way, and a dashed one for its 95th percentile.

    The axis ends a little above the longest seconds of the last way; lines that leave the plot end there.
    """
    ways = list(dict.fromkeys(each.way for each in points))
    fastest = max(each.rate for each in points)
    longest = 1.1 * max(each.p95_seconds for each in points if each.way == ways[-1])
    seconds = [f"{tick:.2f} s" for tick in ticks(_NUM_TICKS, longest)]
    rates = [f"{tick:.1f}" for tick in ticks(_NUM_TICKS, fastest)]
    parts = _FRAME.opened(_TITLE, rates, seconds, left=10)
    for number, (way, color) in enumerate(zip(ways, _COLORS, strict=True)):
        own = [each for each in points if each.way == way]
        medians = [(each.rate / fastest, each.p50_seconds / longest) for each in own]
        slowest = [(each.rate / fastest, each.p95_seconds / longest) for each in own]
        y = TOP + 10 + 20 * number
        parts += [
            _line(medians, color, ""),
            _line(slowest, color, ' stroke-dasharray="6 4"'),
            f'<text x="{LEFT + 20}" y="{y}" fill="{color}">{way}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _line(points: Sequence[tuple[float, float]], color: str, dashes: str) -> str:
    """Return a line that ends where it leaves the plot, at its upper edge."""
    drawn = " ".join(f"{_FRAME.x(x):.1f},{_FRAME.y(y):.1f}" for x, y in _inside(points))
    return f'<polyline points="{drawn}" fill="none" stroke="{color}" stroke-width="2"{dashes}/>'


def _inside(points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    before: tuple[float, float] | None = None
    for x, y in points:
        if y > 1:
            if before is not None:
                yield before[0] + (x - before[0]) * (1 - before[1]) / (y - before[1]), 1.0
            return
        yield x, y
        before = (x, y)
