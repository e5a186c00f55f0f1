"""Plans are parsed, and refused if the group or the model does not fit."""

import pytest

from diffuserve.domain.errors import InvalidParams
from diffuserve.parallel.plan import ParallelPlan, check_group, check_shared


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("sequence=1", ParallelPlan()),
        ("sequence=4", ParallelPlan(sequence=4)),
        (" sequence=16 ", ParallelPlan(sequence=16)),
        ("tensor=2", ParallelPlan(tensor=2)),
        ("tensor=2,sequence=4", ParallelPlan(sequence=4, tensor=2)),
        ("sequence=4, tensor=2", ParallelPlan(sequence=4, tensor=2)),
    ],
)
def test_a_plan_is_parsed(text: str, plan: ParallelPlan) -> None:
    assert ParallelPlan.parse(text) == plan
    assert plan.num_ranks == plan.sequence * plan.tensor


@pytest.mark.parametrize("text", ["sequence=1", "sequence=4", "tensor=2", "tensor=2,sequence=4"])
def test_a_plan_is_written_as_it_is_parsed(text: str) -> None:
    assert str(ParallelPlan.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4",
        "sequence",
        "sequence=0",
        "sequence=-1",
        "sequence=04",
        "sequence=99999",
        "tensor=0",
        "cfg=2",
        "tensor=2,",
        "tensor=2;sequence=2",
    ],
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidParams, match=r"parallel.*for example sequence=4"):
        ParallelPlan.parse(text)


@pytest.mark.parametrize("text", ["sequence=2,sequence=2", "tensor=2,sequence=2,tensor=2"])
def test_a_part_given_twice_is_refused(text: str) -> None:
    with pytest.raises(InvalidParams, match="parallel"):
        ParallelPlan.parse(text)


@pytest.mark.parametrize(
    "plan", [ParallelPlan(), ParallelPlan(sequence=3), ParallelPlan(tensor=2), ParallelPlan(3, 2)], ids=str
)
def test_ranks_that_share_the_heads_evenly_are_accepted(plan: ParallelPlan) -> None:
    check_shared(plan, "attention heads", 6)


@pytest.mark.parametrize(
    ("plan", "remedy"),
    [
        (ParallelPlan(sequence=4), "sequence may be 1, 2, 3, 6"),
        (ParallelPlan(tensor=2, sequence=2), "tensor times sequence may be 1, 2, 3, 6"),
    ],
    ids=str,
)
def test_heads_that_cannot_be_shared_evenly_are_refused_with_the_numbers_that_work(
    plan: ParallelPlan, remedy: str
) -> None:
    with pytest.raises(InvalidParams, match=rf"6 attention heads.* {remedy}"):
        check_shared(plan, "attention heads", 6)


@pytest.mark.parametrize("plan", [ParallelPlan(sequence=4), ParallelPlan(2, 2)], ids=str)
def test_a_plan_for_another_number_of_ranks_is_refused(plan: ParallelPlan) -> None:
    with pytest.raises(InvalidParams, match=r"needs 4 ranks, .* but there are 2"):
        check_group(plan, 2)
