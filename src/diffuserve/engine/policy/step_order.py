"""The order in which requests of one priority take their steps: pure arithmetic on predicted seconds.

Shortest remaining work first has the lowest mean wait of all orders (Schrage 1968, "A proof of the
optimality of the shortest remaining processing time discipline"), but lets long requests wait for long.
So half of a request's age counts off its work, as in the boosts of Yu and Scully 2024 ("Strongly tail-optimal
scheduling in the light-tailed M/G/1"), and there is a delay that nobody is to exceed for another's sake.
"""

from enum import StrEnum

_AGE_SHARE = 0.5  # of the age, counted off the work that remains
_MAX_DELAY = 4.0  # times a request's own work, from its arrival to its last step


class StepOrder(StrEnum):
    """Who goes first among requests of one priority: the first to arrive, or the shortest."""

    ARRIVAL = "arrival"
    SHORTEST = "shortest"


def shortest_first(remaining: float, whole: float, age: float) -> tuple[int, float]:
    """Return the key by which requests are sorted: the shortest first, after those that were delayed.

    `remaining` and `whole` are the seconds that the request's steps take by themselves, `age` those of the
    steps that the engine has done since it arrived. Who would end after more than 4 times its own work even
    if it went on now was delayed, and goes before all others, the most delayed first. As it steps, its delay
    stays the same and grows for those that wait, so they take turns.
    """
    delay = (age + remaining) / whole if whole else 0.0
    if delay > _MAX_DELAY:
        return 0, -delay
    return 1, remaining - _AGE_SHARE * age
