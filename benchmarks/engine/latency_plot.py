"""A plot, as SVG, of seconds to an image over the load, for each way of batching."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_WIDTH, _HEIGHT, _LEFT, _TOP, _BELOW = 640, 340, 60, 40, 60
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
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="20">Seconds to an image over images a second; dashed: 95th percentile</text>',
        *_axes(fastest, longest),
    ]
    for number, (way, color) in enumerate(zip(ways, _COLORS, strict=True)):
        own = [each for each in points if each.way == way]
        medians = [(each.rate / fastest, each.p50_seconds / longest) for each in own]
        slowest = [(each.rate / fastest, each.p95_seconds / longest) for each in own]
        y = _TOP + 10 + 20 * number
        parts += [
            _line(medians, color, ""),
            _line(slowest, color, ' stroke-dasharray="6 4"'),
            f'<text x="{_LEFT + 20}" y="{y}" fill="{color}">{way}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _line(points: Sequence[tuple[float, float]], color: str, dashes: str) -> str:
    """Return a line that ends where it leaves the plot, at its upper edge."""
    drawn = " ".join(f"{_x(x):.1f},{_y(y):.1f}" for x, y in _inside(points))
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


def _axes(fastest: float, longest: float) -> list[str]:
    ticks = [number / _NUM_TICKS for number in range(_NUM_TICKS + 1)]
    bottom = _y(0.0)
    return [
        f'<path d="M{_LEFT} {_TOP}V{bottom:.0f}H{_WIDTH - 20}" fill="none" stroke="black"/>',
        *(f'<text x="10" y="{_y(tick) + 4:.0f}">{tick * longest:.2f} s</text>' for tick in ticks),
        *(
            f'<text x="{_x(tick) - 10:.0f}" y="{bottom + 20:.0f}">{tick * fastest:.1f}</text>'
            for tick in ticks
        ),
    ]


def _x(share: float) -> float:
    return _LEFT + share * (_WIDTH - _LEFT - 40)


def _y(share: float) -> float:
    return _HEIGHT - _BELOW - share * (_HEIGHT - _BELOW - _TOP)
