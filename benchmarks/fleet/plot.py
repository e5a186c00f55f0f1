"""A plot, as SVG, of the workers that are ready while the trace goes by, for each fleet."""

import math
from collections.abc import Mapping, Sequence

from benchmarks.engine.plot_frame import LEFT, PlotFrame, ticks
from benchmarks.fleet.figures import Course
from benchmarks.fleet.trace import MOST

_FRAME = PlotFrame(height=380)
_TITLE = "Workers that are ready, over seconds of the trace; vertical: a machine goes"
_COLORS = ("#0050c8", "#e08a00", "#7f7f7f", "#b0b0b0")
_NUM_TICKS = 4
_ROUND = 40.0  # seconds to whose multiple the axis goes
_APART = 0.03  # of a worker, so that lines on the same number are seen


def plotted(courses: Mapping[str, Course]) -> str:
    """Return a line of steps for each fleet, and one across for each loss of the first."""
    longest = _ROUND * math.ceil(max(course.seconds for course in courses.values()) / _ROUND)
    below = [f"{tick:.0f} s" for tick in ticks(_NUM_TICKS, longest)]
    parts = _FRAME.opened(_TITLE, below, [str(count) for count in range(MOST + 2)], left=30)
    for loss in next(iter(courses.values())).losses:
        x = _FRAME.x(loss.second / longest)
        parts.append(
            f'<path d="M{x:.1f} {_FRAME.y(1):.0f}V{_FRAME.y(0):.0f}" stroke="#999" stroke-dasharray="2 4"/>'
        )
    for number, ((name, course), color) in enumerate(zip(courses.items(), _COLORS, strict=False)):
        points = _steps(course.workers, number * _APART, longest, course.seconds)
        parts += [
            f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>',
            f'<text x="{LEFT + 20 + 290 * (number % 2)}" y="{_FRAME.height - 26 + 18 * (number // 2)}" '
            f'fill="{color}">{name}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _steps(workers: Sequence[tuple[float, int]], above: float, longest: float, until: float) -> str:
    """Return the corners of a line that keeps each number up to the next, the last `until` a second."""
    ends = [at for at, _ in workers[1:]] + [until]
    corners = [(at, count) for (begin, count), end in zip(workers, ends, strict=True) for at in (begin, end)]
    places = ((at / longest, (count + above) / (MOST + 1)) for at, count in corners)
    return " ".join(f"{_FRAME.x(x):.1f},{_FRAME.y(y):.1f}" for x, y in places)
