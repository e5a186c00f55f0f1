"""The arithmetic of seconds."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.domain.codec import from_json, from_values
from diffuserve.domain.models.cost import CostFit, Workload, step_features

FIT = CostFit(encode=(0.002, 1e-5), step=(0.004, 2e-5, 3e-9, 1e-4), decode=(0.001, 4e-8))

LOADS = st.builds(
    Workload,
    num_sequences=st.integers(1, 32),
    sequence_tokens=st.integers(1, 20_000),
    text_tokens=st.integers(1, 512),
    num_pixels=st.integers(1, 10**8),
    num_inference_steps=st.integers(1, 100),
)
COEFFICIENTS = st.floats(0, 1e3)
FITS = st.builds(
    CostFit,
    encode=st.tuples(COEFFICIENTS, COEFFICIENTS),
    step=st.tuples(COEFFICIENTS, COEFFICIENTS, COEFFICIENTS, COEFFICIENTS),
    decode=st.tuples(COEFFICIENTS, COEFFICIENTS),
    load_seconds=COEFFICIENTS,
)


def make_workload(num_sequences: int = 2, sequence_tokens: int = 300) -> Workload:
    return Workload(
        num_sequences=num_sequences,
        sequence_tokens=sequence_tokens,
        text_tokens=32,
        num_pixels=2 * 128 * 128,
        num_inference_steps=5,
    )


def test_a_step_costs_by_tokens_squared_tokens_and_sequences() -> None:
    workloads = [make_workload(2, 300), make_workload(1, 100)]
    assert step_features(workloads) == (1.0, 700.0, 2 * 300.0**2 + 100.0**2, 3.0)
    assert FIT.step_seconds(workloads) == pytest.approx(0.004 + 2e-5 * 700 + 3e-9 * 190_000 + 1e-4 * 3)


def test_each_adapter_adds_a_twentieth_to_what_steps_do_and_nothing_to_other_phases() -> None:
    plain, adapted = make_workload(), replace(make_workload(), num_adapters=2)
    without, with_two = FIT.estimate(plain), FIT.estimate(adapted)
    constant = plain.num_inference_steps * FIT.step[0]
    assert with_two.denoise_seconds - constant == pytest.approx(1.1 * (without.denoise_seconds - constant))
    assert with_two.encode_seconds == without.encode_seconds
    assert with_two.decode_seconds == without.decode_seconds
    plain_share, adapted_share = FIT.step_shares([plain, adapted])
    assert adapted_share > plain_share, "who uses them pays for them"


def test_an_estimate_is_the_sum_of_its_phases() -> None:
    estimate = FIT.estimate(make_workload())
    assert estimate.encode_seconds == pytest.approx(0.002 + 1e-5 * 32)
    assert estimate.denoise_seconds == pytest.approx(5 * (0.004 + 2e-5 * 600 + 3e-9 * 180_000 + 1e-4 * 2))
    assert estimate.decode_seconds == pytest.approx(0.001 + 4e-8 * 32_768)
    assert estimate.seconds == pytest.approx(
        estimate.encode_seconds + estimate.denoise_seconds + estimate.decode_seconds
    )


@given(workload=LOADS, steps=st.integers(1, 100))
def test_denoising_costs_in_proportion_to_its_steps(workload: Workload, steps: int) -> None:
    single, many = (FIT.estimate(replace(workload, num_inference_steps=count)) for count in (1, steps))
    assert many.denoise_seconds == pytest.approx(steps * single.denoise_seconds)
    assert many.encode_seconds + many.decode_seconds == pytest.approx(
        single.encode_seconds + single.decode_seconds
    )


@given(FITS, st.lists(LOADS, min_size=1, max_size=8))
def test_shares_of_a_step_are_never_negative_and_sum_to_one(fit: CostFit, workloads: list[Workload]) -> None:
    shares = fit.step_shares(workloads)
    assert len(shares) == len(workloads)
    assert min(shares) >= 0
    assert sum(shares) == pytest.approx(1)


def test_a_larger_request_pays_a_larger_share_and_equals_pay_equally() -> None:
    small, large, same = FIT.step_shares(
        [make_workload(1, 100), make_workload(4, 1_000), make_workload(1, 100)]
    )
    assert small == same < large


def test_a_fit_of_zeros_shares_equally() -> None:
    nothing = CostFit((0.0, 0.0), (0.0, 0.0, 0.0, 0.0), (0.0, 0.0))
    assert nothing.step_shares([make_workload(1), make_workload(9)]) == [0.5, 0.5]


@pytest.mark.parametrize("overhead", [0.1, 0.03])
def test_at_the_knee_the_constant_part_is_the_stated_share_of_the_rest(overhead: float) -> None:
    knee = FIT.knee_tokens(overhead)
    assert FIT.step[0] == pytest.approx(overhead * FIT.step[1] * knee, rel=1e-3)


def test_without_a_cost_per_token_there_is_no_knee() -> None:
    assert replace(FIT, step=(0.004, 0.0, 0.0, 0.0)).knee_tokens() == 0


@given(FITS)
def test_a_fit_survives_json(fit: CostFit) -> None:
    assert from_json(CostFit, json.dumps(asdict(fit))) == fit


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"encode": [1, 2], "step": [1, 2, 3, 4]},
        {"encode": [1, 2], "step": [1, 2, 3, 4], "decode": [1, 2], "load_seconds": -1.0},
        {"encode": [1, 2], "step": [1, 2, 3, 4], "decode": [1, 2], "load_seconds": [1.0]},
        {"encode": [1, 2], "step": [1, 2, 3], "decode": [1, 2]},
        {"encode": [1, 2, 3], "step": [1, 2, 3, 4], "decode": [1, 2]},
        {"encode": [1, "x"], "step": [1, 2, 3, 4], "decode": [1, 2]},
        {"encode": 1, "step": [1, 2, 3, 4], "decode": [1, 2]},
        {"encode": [1, None], "step": [1, 2, 3, 4], "decode": [1, 2]},
    ],
)
def test_other_values_are_not_a_fit(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        from_values(CostFit, values)
