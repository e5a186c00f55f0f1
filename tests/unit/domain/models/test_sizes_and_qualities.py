"""Sizes that a model draws well, nearest to those asked for, and step counts by the words of clients."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.domain.models.qualities import quality_steps
from diffuserve.domain.models.sizes import well_drawn_size
from support.small_spec import SPEC

LEARNED = replace(SPEC, learned_min_size=96, learned_max_size=256, max_size=2048, max_pixels=2048 * 2048)


@pytest.mark.parametrize(
    ("asked", "drawn"),
    [
        ((1024, 1024), (256, 256)),
        ((1536, 1024), (256, 160)),
        ((1024, 1792), (144, 256)),
        ((4000, 400), (256, 96)),
        ((100, 100), (96, 96)),
        ((16, 16), (96, 96)),
        ((128, 256), (128, 256)),
    ],
)
def test_a_size_becomes_the_nearest_that_was_learned(asked: tuple[int, int], drawn: tuple[int, int]) -> None:
    assert well_drawn_size(LEARNED, *asked) == drawn


@given(st.integers(1, 9_999), st.integers(1, 9_999))
def test_what_is_returned_is_drawn_well_as_it_is(width: int, height: int) -> None:
    for spec in (SPEC, LEARNED):
        size = well_drawn_size(spec, width, height)
        assert well_drawn_size(spec, *size) == size
        spec.resolve(spec.simple_request("any", width=size[0], height=size[1]), seed=0)


def test_qualities_are_multiples_of_the_default_steps() -> None:
    few, many = replace(SPEC, num_inference_steps=1), replace(SPEC, num_inference_steps=50)
    assert quality_steps(few) == {"low": 1, "medium": 1, "high": 2, "xhigh": 2, "max": 3}
    assert quality_steps(many) == {"low": 25, "medium": 50, "high": 75, "xhigh": 100, "max": 100}
    assert quality_steps(many, (20, 50)) == {"low": 20, "medium": 50, "high": 50, "xhigh": 50, "max": 50}
