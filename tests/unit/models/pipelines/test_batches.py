"""Batches are run in groups of like items and split by request again."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from diffuserve.models.pipelines.batches import run_in_groups, split_by_counts


@given(st.lists(st.integers(0, 20)))
def test_results_come_in_the_items_order(items: list[int]) -> None:
    groups: list[list[int]] = []

    def run(group: Sequence[int]) -> list[str]:
        groups.append(list(group))
        return [f"result {item}" for item in group]

    assert run_in_groups(items, lambda item: item % 3, run) == [f"result {item}" for item in items]
    assert len(groups) == len({item % 3 for item in items})
    assert all(len({item % 3 for item in group}) == 1 for group in groups)


def test_items_are_split_into_consecutive_lists() -> None:
    assert split_by_counts("abcdef", [1, 3, 2]) == [["a"], ["b", "c", "d"], ["e", "f"]]
