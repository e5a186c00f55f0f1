"""Splitting work evenly."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def balanced_shards(items: Sequence[T], weights: Sequence[int], num_shards: int) -> list[list[T]]:
    """Up to `num_shards` lists of about equal weight, none empty: heaviest first, each to the lightest."""
    num_shards = min(num_shards, len(items))
    shards: list[list[T]] = [[] for _ in range(num_shards)]
    loads = [0] * num_shards
    for index in sorted(range(len(items)), key=lambda i: -weights[i]):
        lightest = loads.index(min(loads))
        shards[lightest].append(items[index])
        loads[lightest] += weights[index]
    return shards
