"""A plot, as SVG, of how many requests of each way of batching have their image after so many seconds."""

from collections.abc import Mapping, Sequence

_WIDTH, _HEIGHT, _LEFT, _TOP, _BELOW = 640, 360, 60, 40, 60
_COLORS = ("#7f7f7f", "#e08a00", "#b00020", "#0050c8")
_NUM_TICKS = 5


def plotted(latencies: Mapping[str, Sequence[float]]) -> str:
    """Return the share of requests over seconds, one line for each way."""
    longest = max(max(seconds) for seconds in latencies.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="20">Requests that have their image, by seconds since they arrived</text>',
        *_axes(longest),
    ]
    for number, (name, seconds) in enumerate(latencies.items()):
        color, y = _COLORS[number % len(_COLORS)], _HEIGHT - _BELOW - 20 * (len(latencies) - number)
        parts.append(
            f'<polyline points="{_line(seconds, longest)}" fill="none" stroke="{color}" stroke-width="2"/>'
            f'<text x="{_WIDTH - 230}" y="{y}" fill="{color}">{name}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _line(seconds: Sequence[float], longest: float) -> str:
    """Return the points of one line, which rises by one request at a time."""
    points = [(0.0, 0.0)]
    for rank, latency in enumerate(sorted(seconds), start=1):
        points += [(latency, (rank - 1) / len(seconds)), (latency, rank / len(seconds))]
    points.append((longest, 1.0))
    return " ".join(f"{_x(time / longest):.1f},{_y(share):.1f}" for time, share in points)


def _axes(longest: float) -> list[str]:
    ticks = [number / _NUM_TICKS for number in range(_NUM_TICKS + 1)]
    bottom = _y(0.0)
    return [
        f'<path d="M{_LEFT} {_TOP}V{bottom:.0f}H{_WIDTH - 20}" fill="none" stroke="black"/>',
        *(f'<text x="12" y="{_y(tick) + 4:.0f}">{tick:.0%}</text>' for tick in ticks),
        *(
            f'<text x="{_x(tick) - 12:.0f}" y="{bottom + 20:.0f}">{tick * longest:.1f} s</text>'
            for tick in ticks
        ),
    ]


def _x(share: float) -> float:
    return _LEFT + share * (_WIDTH - _LEFT - 40)


def _y(share: float) -> float:
    return _HEIGHT - _BELOW - share * (_HEIGHT - _BELOW - _TOP)
