"""Plans are parsed, and refused if the group or the model does not fit."""

import pytest

from diffuserve.domain.errors import InvalidParams
from diffuserve.parallel.plan import (
    ParallelPlan,
    check_group,
    check_passes,
    check_shared,
    encoder_sharing,
)


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("sequence=1", ParallelPlan()),
        ("sequence=4", ParallelPlan(sequence=4)),
        (" sequence=16 ", ParallelPlan(sequence=16)),
        ("tensor=2", ParallelPlan(tensor=2)),
        ("tensor=2,sequence=4", ParallelPlan(sequence=4, tensor=2)),
        ("sequence=4, tensor=2", ParallelPlan(sequence=4, tensor=2)),
        ("cfg=2", ParallelPlan(cfg=2)),
        ("tensor=4,cfg=2,sequence=3", ParallelPlan(3, 4, 2)),
    ],
)
def test_a_plan_is_parsed(text: str, plan: ParallelPlan) -> None:
    assert ParallelPlan.parse(text) == plan
    assert plan.num_ranks == plan.sequence * plan.tensor * plan.cfg


@pytest.mark.parametrize(
    "text",
    ["sequence=1", "sequence=4", "tensor=2", "tensor=2,sequence=4", "cfg=2", "cfg=2,tensor=4,sequence=3"],
)
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
        "cfg=0",
        "guidance=2",
        "tensor=2,",
        "tensor=2;sequence=2",
    ],
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidParams, match=r"parallel.*for example sequence=4"):
        ParallelPlan.parse(text)


@pytest.mark.parametrize("text", ["sequence=2,sequence=2", "tensor=2,sequence=2,tensor=2", "cfg=2,cfg=2"])
def test_a_part_given_twice_is_refused(text: str) -> None:
    with pytest.raises(InvalidParams, match="parallel"):
        ParallelPlan.parse(text)


@pytest.mark.parametrize(
    "plan",
    [
        ParallelPlan(),
        ParallelPlan(sequence=3),
        ParallelPlan(tensor=2),
        ParallelPlan(3, 2),
        ParallelPlan(6, cfg=2),
    ],
    ids=str,
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


@pytest.mark.parametrize(("heads", "features", "num_sharing"), [(8, 64, 4), (6, 64, 2), (8, 6, 2)])
def test_all_ranks_share_a_text_encoder_or_those_of_the_denoisers_weights(
    heads: int, features: int, num_sharing: int
) -> None:
    """Where it has too few heads for all: those that run other passes then have copies."""
    shared = {"heads": heads, "features": features}
    assert encoder_sharing(ParallelPlan(tensor=2, cfg=2), shared) == num_sharing


def test_a_text_encoder_that_no_ranks_can_share_is_refused() -> None:
    with pytest.raises(InvalidParams, match=r"6 heads, which 4 ranks .* evenly; tensor may be 1, 2, 3, 6"):
        encoder_sharing(ParallelPlan(tensor=4), {"features": 64, "heads": 6})


@pytest.mark.parametrize(
    ("plan", "passes", "message"),
    [
        (ParallelPlan(cfg=2), 1, "steps of Drawer have no passes for cfg to divide; give sequence=2"),
        (ParallelPlan(cfg=4), 2, "a guided step of Drawer has 2 passes; cfg may be up to 2"),
    ],
    ids=str,
)
def test_groups_without_passes_are_refused(plan: ParallelPlan, passes: int, message: str) -> None:
    check_passes(ParallelPlan(3, 2, cfg=passes), passes, "Drawer")
    with pytest.raises(InvalidParams, match=message):
        check_passes(plan, passes, "Drawer")
