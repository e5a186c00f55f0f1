"""Batches of unlike requests: run in groups of like ones, and split by request again."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def run_in_groups(
    items: Sequence[T], key: Callable[[T], Hashable], run: Callable[[Sequence[T]], Sequence[R]]
) -> list[R]:
    """Call `run` on each group of items with equal keys; return the results in the items' order."""
    groups = defaultdict[Hashable, list[int]](list)
    for index, item in enumerate(items):
        groups[key(item)].append(index)
    results: dict[int, R] = {}
    for indices in groups.values():
        results |= zip(indices, run([items[index] for index in indices]), strict=True)
    return [results[index] for index in range(len(items))]


def split_by_counts(items: Iterable[T], counts: Iterable[int]) -> list[list[T]]:
    """Split items into consecutive lists of the given lengths."""
    remaining = iter(items)
    return [list(islice(remaining, count)) for count in counts]
