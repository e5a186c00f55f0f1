"""The split of a step's requests into micro-batches of about equal size."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def balanced_micro_batches(
    items: Sequence[T], weights: Sequence[int], num_micro_batches: int
) -> list[list[T]]:
    """Split items into at most `num_micro_batches` lists of about equal weight, none of them empty.

    Greedy: the heaviest item first, each into the lightest micro-batch so far (Graham 1969, "Bounds on
    multiprocessing timing anomalies": at most 4/3 of the optimal largest weight).
    """
    num_micro_batches = min(num_micro_batches, len(items))
    micro_batches: list[list[T]] = [[] for _ in range(num_micro_batches)]
    totals = [0] * num_micro_batches
    for index in sorted(range(len(items)), key=lambda i: -weights[i]):
        lightest = totals.index(min(totals))
        micro_batches[lightest].append(items[index])
        totals[lightest] += weights[index]
    return micro_batches
