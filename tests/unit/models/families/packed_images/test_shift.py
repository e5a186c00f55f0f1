"""The shift by size against diffusers'."""

from typing import Any

import pytest
from diffusers.pipelines.flux.pipeline_flux import calculate_shift
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.families.packed_images.shift import SizeShift

SHIFTS = st.builds(
    SizeShift,
    base_shift=st.floats(0.1, 1),
    max_shift=st.floats(1.01, 3),
    base_image_seq_len=st.sampled_from([64, 256]),
    max_image_seq_len=st.sampled_from([1_024, 4_096, 8_192]),
)


@given(SHIFTS, st.integers(1, 16_384))
def test_it_equals_the_references_to_the_last_bit(shift: SizeShift, image_tokens: int) -> None:
    lengths = (shift.base_image_seq_len, shift.max_image_seq_len)
    assert shift.mu(image_tokens) == calculate_shift(
        image_tokens, *lengths, shift.base_shift, shift.max_shift
    )


@pytest.mark.parametrize(
    "values",
    [
        {"base_image_seq_len": 256, "max_image_seq_len": 256},
        {"base_image_seq_len": 1, "max_image_seq_len": 2, "base_shift": -20.0, "max_shift": 20.0},
        {"base_image_seq_len": 256, "max_image_seq_len": 4096, "base_shift": 0.5, "max_shift": 2.0},
    ],
)
def test_a_line_that_is_too_steep_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidModel, match="too steep"):
        SizeShift.from_config(values)
