"""Plans are parsed, and refused if the group or the model does not fit."""

import pytest

from diffuserve.domain.errors import InvalidParams
from diffuserve.parallel.plan import ParallelPlan, check_plan


@pytest.mark.parametrize(("text", "num_ranks"), [("sequence=1", 1), ("sequence=4", 4), (" sequence=16 ", 16)])
def test_a_plan_is_parsed(text: str, num_ranks: int) -> None:
    assert ParallelPlan.parse(text) == ParallelPlan(sequence=num_ranks)


def test_a_plan_is_written_as_it_is_parsed() -> None:
    assert str(ParallelPlan(sequence=4)) == "sequence=4"
    assert ParallelPlan.parse(str(ParallelPlan(sequence=4))) == ParallelPlan(sequence=4)


@pytest.mark.parametrize(
    "text",
    ["", "4", "sequence", "sequence=0", "sequence=-1", "sequence=04", "sequence=99999", "tensor=2", "cfg=2"],
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidParams, match=r"parallel.*for example sequence=4"):
        ParallelPlan.parse(text)


def test_several_parts_are_refused() -> None:
    with pytest.raises(InvalidParams, match="parallel"):
        ParallelPlan.parse("sequence=2,sequence=2")


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 6])
def test_ranks_that_share_the_heads_evenly_are_accepted(num_ranks: int) -> None:
    check_plan(ParallelPlan(sequence=num_ranks), num_ranks, num_heads=6)


def test_heads_that_cannot_be_shared_evenly_are_refused_with_the_numbers_that_work() -> None:
    with pytest.raises(InvalidParams, match=r"6 attention heads.* sequence may be 1, 2, 3, 6"):
        check_plan(ParallelPlan(sequence=4), 4, num_heads=6)


def test_a_plan_for_another_number_of_ranks_is_refused() -> None:
    with pytest.raises(InvalidParams, match="needs 4 ranks, but the group has 2"):
        check_plan(ParallelPlan(sequence=4), 2, num_heads=8)
