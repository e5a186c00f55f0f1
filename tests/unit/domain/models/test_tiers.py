"""Allowed step counts and sizes: the nearest is used, or others are refused."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.models.tiers import (
    NO_TIERS,
    TierPolicy,
    Tiers,
    possible_tiers,
    replaced_values,
    within_tiers,
)
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from support.small_spec import SPEC

TIERS = Tiers(steps=(4, 8, 20, 50), sizes=("64x64", "128x64", "128x128"))
STRICT = replace(TIERS, policy=TierPolicy.REFUSE)


def asked(**values: Any) -> GenerationParams:
    return GenerationParams(prompt="a star", **values)


@pytest.mark.parametrize(("steps", "used"), [(1, 4), (4, 4), (6, 4), (7, 8), (14, 8), (15, 20), (100, 50)])
def test_the_nearest_step_count_is_used_and_of_two_the_smaller(steps: int, used: int) -> None:
    assert TIERS.allowed(SPEC, asked(num_inference_steps=steps)).num_inference_steps == used


@pytest.mark.parametrize(
    ("size", "used"),
    [
        ((64, 64), (64, 64)),
        ((500, 250), (128, 64)),
        ((90, 110), (128, 128)),
        ((16, 4096), (128, 128)),
        ((70, 60), (64, 64)),
    ],
)
def test_the_nearest_size_is_one_of_like_proportions(size: tuple[int, int], used: tuple[int, int]) -> None:
    params = TIERS.allowed(SPEC, asked(width=size[0], height=size[1]))
    assert (params.width, params.height) == used


@given(st.integers(1, 100), st.integers(1, 4_096), st.integers(1, 4_096))
def test_what_is_used_is_allowed_and_what_is_allowed_is_used(steps: int, width: int, height: int) -> None:
    used = TIERS.allowed(SPEC, asked(num_inference_steps=steps, width=width, height=height))
    assert used.num_inference_steps in TIERS.steps
    assert f"{used.width}x{used.height}" in TIERS.sizes
    assert STRICT.allowed(SPEC, used) == TIERS.allowed(SPEC, used) == used


@pytest.mark.parametrize(
    ("values", "field", "named"),
    [
        ({"num_inference_steps": 5}, "num_inference_steps", "with 4, 8, 20 or 50 steps alone"),
        ({"width": 100, "height": 64}, "size", "with 64x64, 128x64 or 128x128 pixels alone"),
        ({"width": 64}, "size", "choose one of these"),
    ],
)
def test_other_values_may_be_refused_and_the_allowed_ones_are_named(
    values: dict[str, int], field: str, named: str
) -> None:
    with pytest.raises(InvalidParams, match=named) as refused:
        STRICT.allowed(SPEC, asked(**values))
    assert refused.value.field == field


@pytest.mark.parametrize("tiers", [TIERS, STRICT])
def test_what_is_left_out_is_the_value_nearest_to_the_default_and_never_refused(tiers: Tiers) -> None:
    spec = replace(SPEC, num_inference_steps=28, width=96, height=48)
    used = tiers.allowed(spec, asked())
    assert (used.num_inference_steps, used.width, used.height) == (20, 128, 64)
    limited = within_tiers(spec, tiers)
    assert (limited.num_inference_steps, limited.width, limited.height) == (20, 128, 64)


def test_an_image_without_a_size_gets_the_allowed_one_nearest_to_its_own() -> None:
    spec = replace(SPEC, max_input_images=1, has_strength=True)
    image = InputImage.blank(256, 120)
    used = STRICT.allowed(spec, asked(image=image))
    assert (used.width, used.height) == (128, 64)


@given(st.integers(1, 100), st.integers(1, 4_096))
def test_no_tiers_change_nothing(steps: int, width: int) -> None:
    params = asked(num_inference_steps=steps, width=width)
    assert NO_TIERS.allowed(SPEC, params) == params
    assert within_tiers(SPEC, NO_TIERS) == SPEC


def test_the_values_that_were_replaced_are_reported_and_no_others() -> None:
    params = asked(num_inference_steps=5, width=60)
    used = TIERS.allowed(SPEC, params)
    assert replaced_values(params, used) == {"num_inference_steps": 5, "width": 60}
    assert replaced_values(asked(num_inference_steps=4), used) is None
    assert replaced_values(asked(), used) is None


def test_tiers_that_a_model_cannot_do_are_left_out_unless_all_are() -> None:
    wanted = Tiers(steps=(4, 8), sizes=("64x64", "100x100", "9000x16"))
    assert possible_tiers(wanted, SPEC) == replace(wanted, sizes=("64x64",))
    impossible = Tiers(sizes=("100x100",))
    assert possible_tiers(impossible, SPEC) == impossible


@pytest.mark.parametrize("tiers", [Tiers(steps=(0,)), Tiers(steps=(101,)), Tiers(sizes=("big",))])
def test_values_that_no_model_has_are_no_tiers(tiers: Tiers) -> None:
    with pytest.raises(ValueError, match="must"):
        tiers.check()
