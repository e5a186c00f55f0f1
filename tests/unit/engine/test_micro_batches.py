"""Work is split evenly and completely."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.engine.steps.denoising import balanced_micro_batches

WEIGHTS = st.lists(st.integers(1, 10_000), max_size=20)
NUM_SHARDS = st.integers(1, 8)


def totals_of(micro_batches: list[list[int]], weights: list[int]) -> list[int]:
    return [sum(weights[item] for item in micro_batch) for micro_batch in micro_batches]


@given(WEIGHTS, NUM_SHARDS)
def test_every_item_is_in_one_and_none_is_empty(weights: list[int], num_micro_batches: int) -> None:
    micro_batches = balanced_micro_batches(range(len(weights)), weights, num_micro_batches)
    assert sorted(item for micro_batch in micro_batches for item in micro_batch) == list(range(len(weights)))
    assert len(micro_batches) == min(num_micro_batches, len(weights))
    assert all(micro_batches)


@given(WEIGHTS.filter(bool), NUM_SHARDS)
def test_the_heaviest_shard_is_above_the_mean_by_less_than_the_heaviest_item(
    weights: list[int], num_micro_batches: int
) -> None:
    """Check Graham's bound (1966) for adding each item to the lightest micro-batch."""
    heaviest = max(
        totals_of(balanced_micro_batches(range(len(weights)), weights, num_micro_batches), weights)
    )
    assert heaviest <= sum(weights) / num_micro_batches + max(weights) * (1 - 1 / num_micro_batches)


@given(WEIGHTS, NUM_SHARDS)
def test_the_split_depends_on_weights_alone(weights: list[int], num_micro_batches: int) -> None:
    split = balanced_micro_batches(range(len(weights)), weights, num_micro_batches)
    assert split == balanced_micro_batches(range(len(weights)), weights, num_micro_batches)
    named = balanced_micro_batches([f"item-{i}" for i in range(len(weights))], weights, num_micro_batches)
    assert named == [[f"item-{i}" for i in micro_batch] for micro_batch in split]


@pytest.mark.parametrize(
    ("weights", "num_micro_batches", "totals"),
    [
        ([4, 4, 4, 4], 2, [8, 8]),
        ([9, 1, 1, 1], 2, [9, 3]),
        ([5, 5, 4, 3, 3], 2, [11, 9]),
        ([7], 4, [7]),
        ([1, 2, 3], 1, [6]),
    ],
)
def test_weights_are_spread(weights: list[int], num_micro_batches: int, totals: list[int]) -> None:
    micro_batches = balanced_micro_batches(range(len(weights)), weights, num_micro_batches)
    assert sorted(totals_of(micro_batches, weights), reverse=True) == totals


def test_no_items_give_no_micro_batches() -> None:
    assert balanced_micro_batches([], [], 4) == []
