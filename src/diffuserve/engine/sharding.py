"""The split of a step's requests into shards of about equal size."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def balanced_shards(items: Sequence[T], weights: Sequence[int], num_shards: int) -> list[list[T]]:
    """Split items into at most `num_shards` lists of about equal weight, none of them empty.

    Greedy: the heaviest item first, each into the lightest shard so far (Graham 1969, "Bounds on
    multiprocessing timing anomalies": at most 4/3 of the optimal largest weight).
    """
    num_shards = min(num_shards, len(items))
    shards: list[list[T]] = [[] for _ in range(num_shards)]
    totals = [0] * num_shards
    for index in sorted(range(len(items)), key=lambda i: -weights[i]):
        lightest = totals.index(min(totals))
        shards[lightest].append(items[index])
        totals[lightest] += weights[index]
    return shards
