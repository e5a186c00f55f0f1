"""How much of the work that waits should share a step: pure arithmetic on predicted seconds (INV-5).

A large step saves the constant part of many small ones, and all of its requests wait for its end. If nobody
came any more, and equal requests went in groups of the share `s` of all the work, one after another, they
would end after `T(s)·(1/s + 1)/2` per step on average, where `T` are the seconds of a step. The first term is
throughput, and it counts for more while requests go on arriving, who wait for all of those before them; the
longer the queue, the likelier they do.
"""

from collections.abc import Iterable
from dataclasses import dataclass

_MIN_MICRO_BATCH_TOKENS = 384  # smaller ones spend more on their own overhead than a second core gives
_THROUGHPUT = 5.0  # its weight: this one wins at every load of tests/unit/engine/test_step_order.py
_LONG_QUEUE = 8  # requests, from which throughput counts in proportion to them
_FEWEST = 2  # requests: steps of one alone would not tell the fit what sharing saves


def num_micro_batches(tokens: int, core_slots: int) -> int:
    """Return the number of forward passes, side by side, into which a step of so many tokens is split."""
    return min(core_slots, max(1, tokens // _MIN_MICRO_BATCH_TOKENS))


@dataclass(frozen=True)
class Work:
    """What a request adds to a step: packed tokens, and predicted seconds of one core slot."""

    tokens: int
    seconds: float

    def plus(self, other: "Work") -> "Work":
        return Work(self.tokens + other.tokens, self.seconds + other.seconds)


NO_WORK = Work(0, 0.0)


@dataclass(frozen=True)
class StepCost:
    """Predicts the seconds of a step: a constant part, and its work, split over core slots."""

    constant_seconds: float
    core_slots: int = 1

    def seconds(self, work: Work) -> float:
        """Return the predicted seconds of a step of so much work."""
        return self.constant_seconds + work.seconds / num_micro_batches(work.tokens, self.core_slots)

    def worthwhile_seconds(self, waiting: Iterable[Work]) -> float:
        """Return how many seconds of the work that waits, from its first on, should share a step.

        It is that of two requests at least.
        """
        sums, so_far = [], NO_WORK
        for work in waiting:
            so_far = so_far.plus(work)
            sums.append(so_far)
        if not so_far.seconds:
            return float("inf")
        throughput = _THROUGHPUT * max(1.0, len(sums) / _LONG_QUEUE)
        best = min(
            (each for each in sums[_FEWEST - 1 :] or sums if each.seconds),
            key=lambda each: self.seconds(each) * (throughput * so_far.seconds / each.seconds + 1),
        )
        return best.seconds
