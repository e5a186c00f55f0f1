"""Noise levels of training are those of the sampler, and count by the image that they lead to."""

import random

import pytest
import torch

from noise_levels import ALPHAS, any_levels, scheduler, shares, step_levels, weights

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.mark.parametrize("num_steps", [1, 4, 6, 8, 20])
def test_levels_are_those_that_the_sampler_visits(num_steps: int) -> None:
    sampler = scheduler()
    sampler.set_timesteps(num_steps)
    assert step_levels(num_steps) == sampler.timesteps.int().tolist()


def test_the_first_level_hides_the_image() -> None:
    sampler = scheduler()
    sampler.set_timesteps(8)
    assert sampler.sigmas[0] > 60
    of_image, of_noise = shares(torch.tensor([999, 0]))
    assert of_image[0] < 0.02 < 0.9 < of_image[1]
    torch.testing.assert_close(of_image**2 + of_noise**2, torch.ones_like(of_image))


def test_levels_with_much_noise_count_by_the_error_of_the_image() -> None:
    levels = torch.tensor([999, 600, 0])
    of_v = 1 / (1 - ALPHAS[levels])  # an error of the image is so much larger as an error of v
    torch.testing.assert_close((weights(levels) * of_v)[:2], of_v[:2].clamp(max=5))
    assert weights(levels)[2] < 0.01


def test_every_level_is_learned_and_those_of_eight_steps_most() -> None:
    levels = any_levels(4000, random.Random(0)).tolist()
    visited = sum(level in step_levels(8) for level in levels) / len(levels)
    assert visited > 0.4
    assert len(set(levels)) > 500
