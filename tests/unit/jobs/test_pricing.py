"""What a job is expected to cost before anybody has measured it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.domain.cost import CostFit
from diffuserve.domain.model_spec import ModelSpec
from diffuserve.domain.params import GenerationParams
from diffuserve.jobs.pricing import FAMILY_FITS, default_fit, predict

SPEC = ModelSpec(
    name="small",
    family="flux",
    width=128,
    height=96,
    num_inference_steps=4,
    max_sequence_length=32,
    longest_sequence_length=64,
    min_size=32,
    max_size=512,
    max_pixels=256 * 256,
    max_images=4,
    max_frames=81,
)
UNKNOWN = replace(SPEC, family="nobody has heard of it")
FIT = CostFit(encode=(1.0, 0.0), step=(10.0, 0.0, 0.0, 0.0), decode=(100.0, 0.0))
SIDES = st.integers(2, 16).map(lambda multiple: 16 * multiple)
PARAMS = st.builds(
    GenerationParams,
    prompt=st.just("a star"),
    width=SIDES,
    height=SIDES,
    num_inference_steps=st.integers(1, 50),
    num_images=st.integers(1, 3),
    num_frames=st.integers(1, 80),
    max_sequence_length=st.integers(1, 63),
)


def params(num_images: int = 1) -> GenerationParams:
    return SPEC.resolve(GenerationParams(prompt="a star", num_images=num_images), seed=7)


def test_a_known_family_has_its_own_fit_and_any_other_one_for_all() -> None:
    stranger = replace(SPEC, family="another")
    assert default_fit(SPEC) is FAMILY_FITS["flux"]
    assert default_fit(UNKNOWN) == default_fit(stranger) != default_fit(SPEC)


def test_the_price_is_by_the_fit_that_is_given_and_has_every_phase() -> None:
    seconds, _ = predict(SPEC, FIT, params())
    assert seconds == pytest.approx(1.0 + 4 * 10.0 + 100.0)


@pytest.mark.parametrize("num_images", [1, 3])
def test_a_steps_tokens_are_those_of_all_images_with_their_text(num_images: int) -> None:
    image = 128 * 96 // SPEC.pixels_per_token
    assert predict(SPEC, FIT, params(num_images))[1] == num_images * (32 + image)


def test_a_step_of_flux_is_priced_near_what_its_operations_take() -> None:
    big = replace(params(), width=512, height=512, max_sequence_length=256)
    one, tokens = predict(SPEC, default_fit(SPEC), replace(big, num_inference_steps=1))
    two, _ = predict(SPEC, default_fit(SPEC), replace(big, num_inference_steps=2))
    assert tokens == 1_280
    assert two - one == pytest.approx(24 / 400, rel=0.5)


@given(
    spec=st.sampled_from([SPEC, UNKNOWN]),
    wanted=PARAMS,
    more=st.sampled_from(
        ["width", "height", "num_inference_steps", "num_images", "num_frames", "max_sequence_length"]
    ),
)
def test_whoever_asks_for_more_pays_more(spec: ModelSpec, wanted: GenerationParams, more: str) -> None:
    amount = 16 if more in ("width", "height") else 1
    larger = replace(wanted, **{more: getattr(wanted, more) + amount})
    (price, tokens), (higher, more_tokens) = (
        predict(spec, default_fit(spec), each) for each in (wanted, larger)
    )
    assert 0 < price < higher
    assert (more_tokens > tokens) is (more != "num_inference_steps")
