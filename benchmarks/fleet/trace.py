"""What every fleet is played: bursts of jobs, machines that die, and one that is taken away, from a seed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.shared import workloads

LEAST, MOST = 2, 3
"""Bounds of each fleet: a burst asks for a third worker, and between bursts one may leave."""
_SIDE = 256
_STEPS = (20, 30, 40)
_BURST_SECONDS = 2.0
_JITTER = 1.0
"""Seconds by which the seed moves a burst or a loss."""


class LossKind(StrEnum):
    """How a machine goes: dead at once, or announced some seconds before, as spot machines are."""

    DEATH = "death"
    NOTICE = "notice"


@dataclass(frozen=True)
class TracedJob:
    """A job, and the second at which it is submitted."""

    second: float
    steps: int
    prompt: str
    seed: int

    @property
    def input(self) -> dict[str, object]:
        """The `input` of the job's request."""
        shape = {"width": _SIDE, "height": _SIDE, "num_inference_steps": self.steps}
        return {"prompt": self.prompt, "seed": self.seed, **shape}


@dataclass(frozen=True)
class MachineLoss:
    """A machine that goes: which one is a `share`, in 0…1, of those whose workers have jobs then."""

    second: float
    kind: LossKind
    share: float

    def victim(self, occupied: Sequence[str]) -> str:
        """Return the worker, out of at least one, whose machine goes."""
        return sorted(occupied)[min(int(self.share * len(occupied)), len(occupied) - 1)]


@dataclass(frozen=True)
class Trace:
    """Jobs by the second of their submission, and machines by that of their loss."""

    jobs: tuple[TracedJob, ...]
    losses: tuple[MachineLoss, ...]


@dataclass(frozen=True)
class TraceShape:
    """The rough course of a trace, in seconds, before the seed moves it.

    Beside `rate` jobs a second there are `burst` jobs at each of `bursts`.
    """

    seconds: float
    rate: float
    burst: int
    bursts: tuple[float, ...]
    losses: tuple[tuple[float, LossKind], ...]


FULL = TraceShape(
    80.0, 0.25, 55, (2.0, 50.0), ((14.0, LossKind.DEATH), (58.0, LossKind.NOTICE), (68.0, LossKind.DEATH))
)
QUICK = TraceShape(20.0, 0.25, 12, (2.0,), ((8.0, LossKind.DEATH), (12.0, LossKind.NOTICE)))


def trace(shape: TraceShape, seed: int) -> Trace:
    """Return the trace of a seed; it is the same on every machine."""
    chance = random.Random(f"fleet {seed}")
    seconds = list(workloads.arrival_seconds(int(shape.rate * shape.seconds), seed, shape.rate))
    for start in shape.bursts:
        begin = start + chance.uniform(0.0, _JITTER)
        seconds += [begin + chance.uniform(0.0, _BURST_SECONDS) for _ in range(shape.burst)]
    jobs = [
        TracedJob(second, chance.choice(_STEPS), workloads.prompt(chance), chance.randrange(2**31))
        for second in sorted(seconds)
    ]
    losses = [
        MachineLoss(at + chance.uniform(0.0, _JITTER), kind, chance.random()) for at, kind in shape.losses
    ]
    return Trace(tuple(jobs), tuple(losses))
