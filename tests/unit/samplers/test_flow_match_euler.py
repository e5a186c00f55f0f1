"""The sampler against its reference: equal to the last bit."""

from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from hypothesis import assume, given
from hypothesis import strategies as st

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.families.packed_images.shift import SizeShift
from diffuserve.samplers.base import Sampler
from diffuserve.samplers.flow_match_euler import FlowMatchEuler, FlowMatchEulerBetweenEnds

OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "shift": st.floats(0.1, 10),
    "use_dynamic_shifting": st.booleans(),
    "time_shift_type": st.sampled_from(["exponential", "linear"]),
    "shift_terminal": st.none() | st.floats(0, 0.5),
}
SAMPLERS = st.builds(FlowMatchEuler, **OPTIONS)
STEPS = st.integers(1, 100)
MU = st.floats(0.1, 3)


def make_reference(sampler: FlowMatchEuler, num_steps: int, mu: float) -> Any:
    """diffusers' scheduler, set up as its FluxPipeline does it."""
    scheduler = FlowMatchEulerDiscreteScheduler(**asdict(sampler))
    scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / num_steps, num_steps), mu=mu)
    scheduler.set_begin_index(0)
    return scheduler


@given(SAMPLERS, STEPS, MU)
def test_schedules_equal_the_references_to_the_last_bit(
    sampler: FlowMatchEuler, num_steps: int, mu: float
) -> None:
    assume(num_steps > 1 or not sampler.shift_terminal)
    reference = make_reference(sampler, num_steps, mu)
    schedule = sampler.schedule(num_steps, mu)
    assert schedule.num_steps == num_steps
    assert schedule.sigmas == tuple(reference.sigmas.tolist())
    assert schedule.timesteps == tuple(reference.timesteps.tolist())


@given(st.builds(FlowMatchEulerBetweenEnds, **OPTIONS), STEPS, MU)
def test_so_do_those_whose_pipeline_passes_no_levels(
    sampler: FlowMatchEulerBetweenEnds, num_steps: int, mu: float
) -> None:
    assume(num_steps > 1 or not sampler.shift_terminal)
    reference = FlowMatchEulerDiscreteScheduler(**asdict(sampler))
    reference.set_timesteps(num_steps, mu=mu)
    schedule = sampler.schedule(num_steps, mu)
    assert schedule.sigmas == tuple(reference.sigmas.tolist())
    assert schedule.timesteps == tuple(reference.timesteps.tolist())


def test_a_terminal_level_is_the_last_at_which_the_model_is_called() -> None:
    sampler = FlowMatchEuler(use_dynamic_shifting=True, shift_terminal=0.02)  # Qwen-Image's
    sigmas = sampler.schedule(50, 0.9).sigmas
    assert (sigmas[0], sigmas[-1]) == (1, 0)
    assert sigmas[-2] == pytest.approx(0.02)
    for shift in (0.1, 1.0, 3.0):
        single = FlowMatchEuler(shift=shift, shift_terminal=0.02).schedule(1)
        assert single.sigmas == pytest.approx((1, 0)), "a single step has nothing to stretch"


@given(SAMPLERS.filter(lambda sampler: sampler.time_shift_type == "exponential"), STEPS, MU)
def test_noise_goes_from_pure_to_none_and_never_rises(
    sampler: FlowMatchEuler, num_steps: int, mu: float
) -> None:
    sigmas = sampler.schedule(num_steps, mu).sigmas
    assert sigmas[0] == pytest.approx(1)
    assert sigmas[-1] == 0
    assert all(next_sigma <= sigma for sigma, next_sigma in pairwise(sigmas))


def test_only_dynamic_shifting_depends_on_the_size() -> None:
    static, dynamic = FlowMatchEuler(shift=3.0), FlowMatchEuler(use_dynamic_shifting=True)
    assert static.schedule(8, 0.5) == static.schedule(8, 1.15) == static.schedule(8)
    assert dynamic.schedule(8, 0.5).sigmas[1] < dynamic.schedule(8, 1.15).sigmas[1]


@given(SAMPLERS, st.integers(1, 20), MU, st.sampled_from([torch.float32, torch.bfloat16]), st.integers(0, 99))
def test_every_step_equals_the_references_to_the_last_bit(
    sampler: FlowMatchEuler, num_steps: int, mu: float, dtype: torch.dtype, seed: int
) -> None:
    assume(num_steps > 1 or not sampler.shift_terminal)
    reference = make_reference(sampler, num_steps, mu)
    schedule = sampler.schedule(num_steps, mu)
    generator = torch.Generator().manual_seed(seed)
    latents = expected = torch.randn(1, 37, 16, generator=generator).to(dtype)
    for index, timestep in enumerate(reference.timesteps):
        prediction = torch.randn(1, 37, 16, generator=generator).to(dtype)
        expected = reference.step(prediction, timestep, expected, return_dict=False)[0]
        latents, memory = sampler.step(latents, prediction, schedule.at(index), (), None)
        assert memory == ()
        assert latents.dtype == dtype
        assert torch.equal(latents, expected)


def test_a_step_does_not_modify_its_inputs() -> None:
    latents, prediction = torch.ones(1, 4, 2), torch.full((1, 4, 2), 2.0)
    FlowMatchEuler().step(latents, prediction, FlowMatchEuler().schedule(2).at(0), (), None)
    assert torch.equal(latents, torch.ones(1, 4, 2))
    assert torch.equal(prediction, torch.full((1, 4, 2), 2.0))


def test_predict_x0_undoes_the_noise_of_a_straight_flow() -> None:
    generator = torch.Generator().manual_seed(0)
    image, noise = torch.randn(2, 1, 64, 16, generator=generator)
    sampler = FlowMatchEuler()
    schedule = sampler.schedule(4)
    for index in range(4):
        at = schedule.at(index)
        noisy = sampler.add_noise(image, noise, at)
        torch.testing.assert_close(sampler.predict_x0(noisy, noise - image, at), image)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("start", [0, 5])
def test_noise_is_added_as_the_reference_does_it(dtype: torch.dtype, start: int) -> None:
    sampler = FlowMatchEuler(shift=3.0)
    reference = make_reference(sampler, 8, 1.0)
    reference.set_begin_index(start)
    image, noise = torch.randn(2, 1, 64, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = reference.scale_noise(image, reference.timesteps[start : start + 1], noise)
    assert torch.equal(sampler.add_noise(image, noise, sampler.schedule(8).at(start)), expected)


def test_the_last_step_ends_at_the_clean_latents() -> None:
    generator = torch.Generator().manual_seed(0)
    latents, prediction = torch.randn(2, 1, 64, 16, generator=generator)
    sampler = FlowMatchEuler(shift=3.0)
    last = sampler.schedule(4).at(3)
    moved, _ = sampler.step(latents, prediction, last, (), None)
    assert torch.equal(sampler.predict_x0(latents, prediction, last), moved)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("use_karras_sigmas", True),
        ("use_exponential_sigmas", True),
        ("use_beta_sigmas", True),
        ("use_flow_sigmas", True),
        ("stochastic_sampling", True),
        ("invert_sigmas", True),
        ("shift_terminal", 1.0),
        ("time_shift_type", "cubic"),
    ],
)
def test_an_option_that_would_change_the_image_is_refused_by_name(option: str, value: object) -> None:
    with pytest.raises(InvalidModel, match=rf"scheduler_config\.json: {option}="):
        FlowMatchEuler.from_config({option: value})


def test_every_option_of_the_reference_is_either_known_or_refused() -> None:
    reference = dict(FlowMatchEulerDiscreteScheduler().config)
    known = asdict(FlowMatchEuler.from_config(reference)) | asdict(SizeShift.from_config(reference))
    left = [name for name in reference if name not in known and not name.startswith("_")]
    for name in left:
        with pytest.raises(InvalidModel, match=name):
            FlowMatchEuler.from_config(reference | {name: True})


def test_a_config_keeps_its_numbers_and_leaves_defaults_for_the_rest() -> None:
    config = {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0, "use_dynamic_shifting": True}
    assert FlowMatchEuler.from_config(config) == FlowMatchEuler(shift=3.0, use_dynamic_shifting=True)


def test_it_fulfils_the_sampler_contract() -> None:
    assert isinstance(FlowMatchEuler(), Sampler)
