"""Work is split evenly and completely."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.engine.sharding import balanced_shards

WEIGHTS = st.lists(st.integers(1, 10_000), max_size=20)
NUM_SHARDS = st.integers(1, 8)


def totals_of(shards: list[list[int]], weights: list[int]) -> list[int]:
    return [sum(weights[item] for item in shard) for shard in shards]


@given(WEIGHTS, NUM_SHARDS)
def test_every_item_is_in_one_shard_and_no_shard_is_empty(weights: list[int], num_shards: int) -> None:
    shards = balanced_shards(range(len(weights)), weights, num_shards)
    assert sorted(item for shard in shards for item in shard) == list(range(len(weights)))
    assert len(shards) == min(num_shards, len(weights))
    assert all(shards)


@given(WEIGHTS.filter(bool), NUM_SHARDS)
def test_the_heaviest_shard_is_above_the_mean_by_less_than_the_heaviest_item(
    weights: list[int], num_shards: int
) -> None:
    """Check Graham's bound (1966) for adding each item to the lightest shard."""
    heaviest = max(totals_of(balanced_shards(range(len(weights)), weights, num_shards), weights))
    assert heaviest <= sum(weights) / num_shards + max(weights) * (1 - 1 / num_shards)


@given(WEIGHTS, NUM_SHARDS)
def test_the_split_depends_on_weights_alone(weights: list[int], num_shards: int) -> None:
    split = balanced_shards(range(len(weights)), weights, num_shards)
    assert split == balanced_shards(range(len(weights)), weights, num_shards)
    named = balanced_shards([f"item-{i}" for i in range(len(weights))], weights, num_shards)
    assert named == [[f"item-{i}" for i in shard] for shard in split]


@pytest.mark.parametrize(
    ("weights", "num_shards", "totals"),
    [
        ([4, 4, 4, 4], 2, [8, 8]),
        ([9, 1, 1, 1], 2, [9, 3]),
        ([5, 5, 4, 3, 3], 2, [11, 9]),
        ([7], 4, [7]),
        ([1, 2, 3], 1, [6]),
    ],
)
def test_weights_are_spread(weights: list[int], num_shards: int, totals: list[int]) -> None:
    shards = balanced_shards(range(len(weights)), weights, num_shards)
    assert sorted(totals_of(shards, weights), reverse=True) == totals


def test_no_items_give_no_shards() -> None:
    assert balanced_shards([], [], 4) == []
