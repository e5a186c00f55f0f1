"""Plots as SVG, which every browser draws and no network is needed for."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BELOW = 60, 150, 30, 40
_COLORS = ("#0050c8", "#e08a00", "#b00020", "#2a7d2a", "#7f3fbf", "#7f7f7f")
_NUM_TICKS = 5


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Lines over one axis; `mark` is a place on it with its name, such as a knee."""

    title: str
    x: str
    y: str
    lines: Mapping[str, Points]
    mark: tuple[float, str] | None = None

    def svg(self) -> str:
        """Return the drawing."""
        points = [point for line in self.lines.values() for point in line] or [(0.0, 0.0)]
        axes = _Axes(_ceiling(max(x for x, _ in points)), _ceiling(max(y for _, y in points)))
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
                f'aria-label="{escape(self.title)}" font-family="sans-serif" font-size="12">',
                f'<text x="{_LEFT}" y="18" font-size="14">{escape(self.title)}</text>',
                *axes.drawn(self.x, self.y),
                *self._mark(axes),
                *(_line(axes, number, *named) for number, named in enumerate(self.lines.items())),
                "</svg>",
            ]
        )

    def _mark(self, axes: "_Axes") -> Iterator[str]:
        if self.mark is not None:
            x = axes.x(self.mark[0])
            yield f'<path d="M{x:.1f} {_TOP}V{_HEIGHT - _BELOW}" stroke="#2a7d2a" stroke-dasharray="4 3"/>'
            yield f'<text x="{x + 4:.1f}" y="{_TOP + 12}" fill="#2a7d2a">{escape(self.mark[1])}</text>'


@dataclass(frozen=True)
class _Axes:
    """The largest values of both axes, which begin at 0."""

    longest: float
    highest: float

    def x(self, value: float) -> float:
        return _LEFT + value / self.longest * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _HEIGHT - _BELOW - value / self.highest * (_HEIGHT - _BELOW - _TOP)

    def drawn(self, x: str, y: str) -> Iterator[str]:
        bottom, right = _HEIGHT - _BELOW, _WIDTH - _RIGHT
        yield f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="currentColor"/>'
        for number in range(_NUM_TICKS + 1):
            share = number / _NUM_TICKS
            at_x, at_y = self.x(share * self.longest), self.y(share * self.highest)
            yield (
                f'<text x="{at_x:.1f}" y="{bottom + 16}" text-anchor="middle" fill="currentColor">'
                f"{share * self.longest:g}</text>"
            )
            yield (
                f'<text x="{_LEFT - 6}" y="{at_y + 4:.1f}" text-anchor="end" fill="currentColor">'
                f"{share * self.highest:g}</text>"
            )
        yield f'<text x="{right}" y="{bottom + 32}" text-anchor="end" fill="currentColor">{escape(x)}</text>'
        yield f'<text x="{_LEFT}" y="{_TOP - 2}" fill="currentColor">{escape(y)}</text>'


def _line(axes: _Axes, number: int, name: str, line: Points) -> str:
    color = _COLORS[number % len(_COLORS)]
    points = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in line)
    at = _TOP + 16 * (number + 1)
    return (
        f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>'
        f'<text x="{_WIDTH - _RIGHT + 8}" y="{at}" fill="{color}">{escape(name)}</text>'
    )


def _ceiling(value: float) -> float:
    """Return the next round number of which a fifth is round too."""
    if value <= 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * power >= value * 0.999)
