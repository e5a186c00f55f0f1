"""What every fleet is played: bursts of jobs, machines that die, and one that is taken away, from a seed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.shared import workloads
from diffuserve.domain.requests.params import GenerationParams

LEAST, MOST = 2, 3
"""Bounds of each fleet: a burst asks for a third worker, and between bursts one may leave."""
_SIDE = 256
_STEPS = (40, 60, 80)
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
    params: GenerationParams

    @property
    def steps(self) -> int:
        """The steps of its image."""
        assert self.params.num_inference_steps is not None
        return self.params.num_inference_steps


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
    90.0, 0.2, 50, (2.0, 60.0), ((14.0, LossKind.DEATH), (68.0, LossKind.NOTICE), (78.0, LossKind.DEATH))
)
QUICK = TraceShape(20.0, 0.2, 8, (2.0,), ((8.0, LossKind.DEATH), (12.0, LossKind.NOTICE)))


def trace(shape: TraceShape, seed: int) -> Trace:
    """Return the trace of a seed; it is the same on every machine."""
    chance = random.Random(f"fleet {seed}")
    seconds = list(workloads.arrival_seconds(int(shape.rate * shape.seconds), seed, shape.rate))
    for start in shape.bursts:
        begin = start + chance.uniform(0.0, _JITTER)
        seconds += [begin + chance.uniform(0.0, _BURST_SECONDS) for _ in range(shape.burst)]
    jobs = [TracedJob(second, _image(chance)) for second in sorted(seconds)]
    losses = [
        MachineLoss(at + chance.uniform(0.0, _JITTER), kind, chance.random()) for at, kind in shape.losses
    ]
    return Trace(tuple(jobs), tuple(losses))


def _image(chance: random.Random) -> GenerationParams:
    return GenerationParams(
        prompt=workloads.prompt(chance),
        width=_SIDE,
        height=_SIDE,
        num_inference_steps=chance.choice(_STEPS),
        seed=chance.randrange(2**31),
    )
