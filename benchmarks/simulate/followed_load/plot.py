"""A plot, as SVG, of workers and queued jobs over a day."""

from collections.abc import Mapping, Sequence

_WIDTH, _HEIGHT, _LEFT, _RIGHT = 720, 420, 50, 20
_PANELS = ((50, 150), (250, 120))  # top and height
_COLORS = ("#888", "#c60", "#06c", "#090")
_DAY = 86_400.0

Line = Sequence[tuple[float, int, int]]
"""Points of a day: time, queued jobs and workers."""


def plotted(lines: Mapping[str, Line]) -> str:
    """Return two panels: workers above, queued jobs below, a line for each fleet."""
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for (top, height), column, title in zip(_PANELS, (2, 1), ("workers", "queued jobs"), strict=True):
        series = {name: [(point[0], int(point[column])) for point in line] for name, line in lines.items()}
        highest = max(value for points in series.values() for _, value in points) or 1
        drawn += _frame(top, height, highest, title)
        for color, points in zip(_COLORS, series.values(), strict=False):
            places = (f"{_x(at):.1f},{top + height * (1 - value / highest):.1f}" for at, value in points)
            drawn.append(f'<polyline points="{" ".join(places)}" fill="none" stroke="{color}"/>')
    drawn += [
        f'<text x="{_LEFT + 160 * place}" y="20" fill="{color}">{name}</text>'
        for place, (color, name) in enumerate(zip(_COLORS, lines, strict=False))
    ]
    return "\n".join([*drawn, "</svg>"]) + "\n"


def _x(at: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * min(at / _DAY, 1.0)


def _frame(top: int, height: int, highest: int, title: str) -> list[str]:
    hours = [
        f'<text x="{_x(hour * 3_600):.0f}" y="{top + height + 16}" text-anchor="middle">{hour}</text>'
        for hour in range(0, 25, 4)
    ]
    return [
        f'<path d="M{_LEFT} {top}V{top + height}H{_WIDTH - _RIGHT}" fill="none" stroke="black"/>',
        f'<text x="{_LEFT + 6}" y="{top - 6}">{title}</text>',
        f'<text x="{_LEFT - 6}" y="{top + 10}" text-anchor="end">{highest}</text>',
        f'<text x="{_LEFT - 6}" y="{top + height}" text-anchor="end">0</text>',
        *hours,
    ]
