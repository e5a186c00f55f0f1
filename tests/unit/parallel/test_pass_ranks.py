"""Passes are dealt out evenly, and every rank gets the results of all."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from diffuserve.parallel.pass_ranks import Hands, PassRanks, deal
from diffuserve.parallel.plan import ParallelPlan
from diffuserve.parallel.ranks import Ranks
from support.forked_ranks import run_on_ranks

LENGTHS = (3, 3, 1, 5, 5, 5)

batches = st.lists(st.tuples(st.floats(1, 1e12), st.integers(1, 5)), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("costs", "hands"),
    [
        ([7.0, 7.0], ((0,), (1,))),
        ([7.0], ((0,), ())),
        ([2.0, 2.0, 9.0, 9.0], ((0, 2), (1, 3))),
        ([1.0, 5.0, 2.0, 2.0], ((1,), (0, 2, 3))),
    ],
    ids=["the passes of a guided image", "a single one", "two requests", "the dearest first"],
)
def test_two_groups_run_passes_of_about_equal_costs(costs: list[float], hands: Hands) -> None:
    assert deal(costs, 2) == hands


@given(batches, st.integers(1, 4))
def test_each_pass_has_one_group_and_none_has_more_than_its_part_of_each_request(
    requests: list[tuple[float, int]], num_groups: int
) -> None:
    """Which memory budgets go by: of a request's equal passes, its part rounded up."""
    costs = [cost for cost, count in requests for _ in range(count)]
    hands = deal(costs, num_groups)
    assert sorted(index for hand in hands for index in hand) == list(range(len(costs)))
    most = sum(cost * -(-count // num_groups) for cost, count in requests)
    assert all(sum(costs[index] for index in hand) <= most * (1 + 1e-9) for hand in hands)


def rows_of(index: int) -> Tensor:
    return torch.full((LENGTHS[index], 2), float(index))


@pytest.mark.parametrize("hands", [((0, 4), (1, 2, 3, 5)), ((0, 1, 2, 3, 4, 5), ())], ids=["some", "all"])
def test_all_ranks_get_the_rows_of_every_pass(hands: Hands, tmp_path: Path) -> None:
    """Groups have unequal numbers of them, and padding after them."""

    def program(ranks: Ranks) -> list[list[list[float]]]:
        own = [rows_of(index) for index in hands[ranks.passes.index]]
        padded = torch.cat([*own, torch.full((ranks.passes.index, 2), -1.0)])
        return [each.tolist() for each in ranks.passes.gather(padded, LENGTHS, hands)]

    expected = [rows_of(index).tolist() for index in range(len(LENGTHS))]
    found = run_on_ranks(program, 2, tmp_path / "store", ParallelPlan(cfg=2))
    assert found == [expected] * 2


def test_a_group_alone_has_all_passes() -> None:
    rows = torch.cat([rows_of(index) for index in range(len(LENGTHS))])
    ranks = PassRanks()
    gathered = ranks.gather(rows, LENGTHS, deal(LENGTHS, ranks.size))
    assert torch.equal(torch.cat(gathered), rows)


def test_groups_stand_side_by_side(tmp_path: Path) -> None:
    """Neighbors share weights, neighbors of them tokens, and the halves passes."""

    def program(ranks: Ranks) -> tuple[tuple[int, int], ...]:
        assert ranks.tensor is not None
        return tuple((each.index, each.size) for each in (ranks.tensor, ranks.sequence, ranks.passes))

    found = run_on_ranks(program, 8, tmp_path / "store", ParallelPlan(sequence=2, tensor=2, cfg=2))
    assert found == [((t, 2), (s, 2), (p, 2)) for p in range(2) for s in range(2) for t in range(2)]
