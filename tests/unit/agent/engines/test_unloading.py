"""Which models give way to another one."""

import pytest

from diffuserve.agent.engines.unloading import ModelInMemory, choose_unloads, is_too_large

OLD, NEWER, NEWEST = (
    ModelInMemory("old", 40, 1),
    ModelInMemory("newer", 30, 2),
    ModelInMemory("newest", 20, 3),
)


@pytest.mark.parametrize(
    ("num_bytes", "leaving"),
    [(10, []), (11, ["old"]), (50, ["old"]), (51, ["old", "newer"]), (100, ["old", "newer", "newest"])],
)
def test_the_least_recently_used_models_give_way_until_there_is_room(
    num_bytes: int, leaving: list[str]
) -> None:
    assert choose_unloads([NEWEST, OLD, NEWER], num_bytes, 100) == leaving


def test_without_a_budget_all_models_stay() -> None:
    assert choose_unloads([OLD, NEWER], 10**12, None) == []
    assert not is_too_large(10**12, None)


def test_a_model_that_is_too_large_alone_is_told() -> None:
    assert [is_too_large(num_bytes, 100) for num_bytes in (100, 101)] == [False, True]
