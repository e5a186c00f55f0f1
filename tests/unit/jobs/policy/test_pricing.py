"""The price of a job follows its size."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.domain.models.cost import CostFit
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.jobs.policy.pricing import NEUTRAL_FIT, bounded, predict
from support import small_spec

SPEC = replace(small_spec.SPEC, max_frames=81)
GUIDED = replace(
    SPEC, has_guidance=True, guidance_passes=2, temporal_stride=4, has_joint_attention=False, max_frames=80
)
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


def test_the_price_is_by_the_fit_that_is_given_and_has_every_phase() -> None:
    seconds = predict(SPEC, FIT, params()).cost_seconds
    assert seconds == pytest.approx(1.0 + 4 * 10.0 + 100.0)


@pytest.mark.parametrize("num_images", [1, 3])
def test_a_steps_tokens_are_those_of_all_images_with_their_text(num_images: int) -> None:
    image = 128 * 96 // SPEC.pixels_per_token
    assert predict(SPEC, FIT, params(num_images)).step_tokens == num_images * (32 + image)


def test_guidance_by_two_passes_doubles_the_price_of_a_step_and_its_tokens() -> None:
    fit = CostFit(encode=(0.0, 0.0), step=(0.0, 1.0, 0.0, 0.0), decode=(0.0, 0.0))
    plain, guided = (predict(GUIDED, fit, replace(params(), guidance_scale=scale)) for scale in (1.0, 5.0))
    assert guided.cost_seconds == 2 * plain.cost_seconds
    assert guided.step_tokens == 2 * plain.step_tokens
    assert predict(SPEC, fit, replace(params(), guidance_scale=5.0)) == predict(SPEC, fit, params())


def test_a_video_is_priced_by_its_latent_frames() -> None:
    image, video = (predict(GUIDED, FIT, replace(params(), num_frames=frames)) for frames in (1, 17))
    assert video.step_tokens == 5 * image.step_tokens
    assert video.latent_bytes == 5 * image.latent_bytes


def test_a_fit_is_bounded_by_the_price_of_the_models_own_clip_and_not_of_one_frame() -> None:
    clips = replace(SPEC, num_frames=17, max_frames=17, temporal_stride=4)
    prior = CostFit((0.0, 0.0), (0.0, 0.0, 1.0, 0.0), (0.0, 0.0))
    cheaper = CostFit((0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (0.0, 0.0))  # by the tokens of a sequence
    times = [bounded(cheaper, prior, spec, most=2.0).step[1] for spec in (SPEC, clips)]
    assert times[1] / times[0] == pytest.approx((5 * 48 + 32) / (48 + 32)), "latent frames, and the text"


def test_the_part_of_decoding_is_known() -> None:
    assert predict(SPEC, FIT, params()).decode_seconds == pytest.approx(100.0)


@given(
    wanted=PARAMS,
    more=st.sampled_from(
        ["width", "height", "num_inference_steps", "num_images", "num_frames", "max_sequence_length"]
    ),
)
def test_more_of_anything_costs_more(wanted: GenerationParams, more: str) -> None:
    amount = 16 if more in ("width", "height") else 1
    larger = replace(wanted, **{more: getattr(wanted, more) + amount})
    price, higher = (predict(SPEC, NEUTRAL_FIT, each) for each in (wanted, larger))
    assert 0 < price.cost_seconds < higher.cost_seconds
    assert (higher.step_tokens > price.step_tokens) is (more != "num_inference_steps")
