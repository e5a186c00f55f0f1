"""Heun's method along a rectified flow against its reference."""

import pytest
import torch
from diffusers import FlowMatchHeunDiscreteScheduler

from diffuserve.samplers.base import Memory, Sampler
from diffuserve.samplers.flow_match_heun import FlowMatchHeun


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_schedules_equal_the_references_to_the_last_bit(shift: float) -> None:
    reference = FlowMatchHeunDiscreteScheduler(shift=shift)
    for num_steps in range(1, 101):
        reference.set_timesteps(num_steps)
        schedule = FlowMatchHeun(shift=shift).schedule(num_steps)
        assert schedule.num_steps == 2 * num_steps - 1
        assert schedule.sigmas == tuple(reference.sigmas.tolist())
        assert schedule.timesteps == tuple(reference.timesteps.tolist())


@pytest.mark.parametrize(("num_steps", "start"), [(1, 0), (2, 0), (2, 1), (7, 0), (7, 4), (28, 0)])
def test_every_step_equals_the_references(num_steps: int, start: int) -> None:
    """A request may start in the middle, at the beginning of a step, which is every second evaluation."""
    sampler, reference = FlowMatchHeun(shift=3.0), FlowMatchHeunDiscreteScheduler(shift=3.0)
    reference.set_timesteps(num_steps)
    reference.set_begin_index(2 * start)
    schedule = sampler.schedule(num_steps).starting_at(2 * start)
    generator = torch.Generator().manual_seed(num_steps)
    latents = expected = torch.randn(1, 5, 16, generator=generator)
    memory: Memory = ()
    for index, timestep in enumerate(reference.timesteps[2 * start :], 2 * start):
        prediction = torch.randn(1, 5, 16, generator=generator)
        expected = reference.step(prediction, timestep, expected).prev_sample
        latents, memory = sampler.step(latents, prediction, schedule.at(index), memory, None)
        torch.testing.assert_close(latents, expected, atol=1e-5, rtol=1e-5)
    assert memory == ()


def test_it_fulfils_the_sampler_contract() -> None:
    assert isinstance(FlowMatchHeun(), Sampler)
