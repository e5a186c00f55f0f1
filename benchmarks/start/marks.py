"""Marks on the way to a first image: names with the seconds since the start."""

import time
from collections.abc import Mapping, Sequence
from statistics import median

Marks = dict[str, float]
_PREFIX = "mark "


def mark(name: str) -> None:
    """Print a mark for the process that started this one; both read the same monotonic clock."""
    print(f"{_PREFIX}{name} {time.monotonic()}", flush=True)


def read_marks(lines: Sequence[str], start: float) -> Marks:
    """Return the marks of a process that was started at `start`."""
    found = (line.removeprefix(_PREFIX).rpartition(" ") for line in lines if line.startswith(_PREFIX))
    return {name: float(at) - start for name, _, at in found}


def medians(runs: Sequence[Marks]) -> Marks:
    """Return the median of each mark."""
    return {name: median(run[name] for run in runs) for name in runs[0]}


def waterfall(marks: Mapping[str, float], width: int = 40) -> list[str]:
    """Return a line for each phase, with its bar at the place where it lies."""
    total = max(marks.values())
    begin, lines = 0.0, []
    for name, at in marks.items():
        left, right = round(begin / total * width), round(at / total * width)
        bar = " " * left + "█" * max(right - left, 1)
        lines.append(f"{name:<14} {at - begin:7.2f} s  {bar}")
        begin = at
    return [*lines, f"{'sum':<14} {total:7.2f} s"]
