"""How ranks are said to share a request, and what cannot be."""

import pytest

from diffuserve.domain.errors import InvalidParams
from diffuserve.parallel.plan import ParallelPlan, check_plan, default_plan


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("sequence=4", ParallelPlan(sequence=4)),
        ("cfg=2", ParallelPlan(cfg=2)),
        ("sequence=2, cfg=2", ParallelPlan(sequence=2, cfg=2)),
    ],
)
def test_a_plan_is_read(text: str, plan: ParallelPlan) -> None:
    assert ParallelPlan.parse(text) == plan
    assert ParallelPlan.parse(str(plan)) == plan


@pytest.mark.parametrize(
    "text", ["", "4", "sequence", "sequence=0", "tensor=2", "sequence=2,sequence=2", "cfg=3"]
)
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(InvalidParams, match="parallel"):
        ParallelPlan.parse(text)


def test_passes_are_split_before_sequences() -> None:
    assert default_plan(8, has_passes=False) == ParallelPlan(sequence=8)
    assert default_plan(8, has_passes=True) == ParallelPlan(sequence=4, cfg=2)
    assert default_plan(3, has_passes=True) == ParallelPlan(sequence=3)


def test_heads_that_cannot_be_shared_evenly_are_refused_with_what_would_do() -> None:
    check_plan(ParallelPlan(sequence=3), 3, num_heads=6, has_passes=False)
    with pytest.raises(InvalidParams, match=r"6 attention heads.* sequence may be 1, 2, 3, 6"):
        check_plan(ParallelPlan(sequence=4), 4, num_heads=6, has_passes=False)


def test_a_plan_must_fit_the_group_and_the_model() -> None:
    with pytest.raises(InvalidParams, match="makes 4 ranks, and there are 2"):
        check_plan(ParallelPlan(sequence=4), 2, num_heads=8, has_passes=False)
    with pytest.raises(InvalidParams, match="one pass"):
        check_plan(ParallelPlan(cfg=2), 2, num_heads=8, has_passes=False)
