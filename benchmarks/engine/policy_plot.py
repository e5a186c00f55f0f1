"""A plot, as SVG, of how many requests of each way of batching have their image after so many seconds."""

from collections.abc import Mapping, Sequence

from benchmarks.engine.plot_frame import BELOW, WIDTH, PlotFrame, ticks

_FRAME = PlotFrame(height=360)
_TITLE = "Requests that have their image, by seconds since they arrived"
_COLORS = ("#7f7f7f", "#e08a00", "#b00020", "#0050c8")
_NUM_TICKS = 5


def plotted(latencies: Mapping[str, Sequence[float]]) -> str:
    """Return the share of requests over seconds, one line for each way."""
    longest = max(max(seconds) for seconds in latencies.values())
    times = [f"{tick:.1f} s" for tick in ticks(_NUM_TICKS, longest)]
    shares = [f"{tick:.0%}" for tick in ticks(_NUM_TICKS)]
    parts = _FRAME.opened(_TITLE, times, shares, left=12)
    for number, (name, seconds) in enumerate(latencies.items()):
        color, y = _COLORS[number % len(_COLORS)], _FRAME.height - BELOW - 20 * (len(latencies) - number)
        parts.append(
            f'<polyline points="{_line(seconds, longest)}" fill="none" stroke="{color}" stroke-width="2"/>'
            f'<text x="{WIDTH - 230}" y="{y}" fill="{color}">{name}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _line(seconds: Sequence[float], longest: float) -> str:
    """Return the points of one line, which rises by one request at a time."""
    points = [(0.0, 0.0)]
    for rank, latency in enumerate(sorted(seconds), start=1):
        points += [(latency, (rank - 1) / len(seconds)), (latency, rank / len(seconds))]
    points.append((longest, 1.0))
    return " ".join(f"{_FRAME.x(time / longest):.1f},{_FRAME.y(share):.1f}" for time, share in points)
