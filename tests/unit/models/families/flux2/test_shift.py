"""FLUX.2's shift against diffusers'."""

from diffusers.pipelines.flux2.pipeline_flux2 import compute_empirical_mu
from hypothesis import example, given
from hypothesis import strategies as st

from diffuserve.models.families.flux2.shift import empirical_mu


@given(st.integers(1, 16_384), st.integers(1, 100))
@example(4_300, 4)
@example(4_301, 4)
def test_it_equals_the_reference_to_the_last_bit(image_tokens: int, num_steps: int) -> None:
    assert empirical_mu(image_tokens, num_steps) == compute_empirical_mu(image_tokens, num_steps)
