"""Walks from noise to clips, and what the transformer is trained to predict on them."""

import pytest
import torch
from torch.testing import assert_close

from choreography import AMOUNT, NUM_TRAITS, traits_of
from clip_latents import ClipLatents
from clip_walks import ClipWalks, levels_of
from video_denoiser import timesteps, weights
from video_folder import scheduler


@pytest.fixture
def latents() -> ClipLatents:
    torch.manual_seed(0)
    return ClipLatents(
        means=torch.randn(12, 16, 5, 12, 12).bfloat16(),
        traits=torch.randn(12, NUM_TRAITS),
        things=torch.randint(0, 2, (12, 6, 6), dtype=torch.uint8),
        mean=torch.zeros(16, 1, 1, 1),
        std=torch.ones(16, 1, 1, 1),
    )


@pytest.mark.parametrize("num_steps", [1, 2, 4, 12])
def test_levels_are_those_of_the_sampler(num_steps: int) -> None:
    sampler = scheduler()
    sampler.set_timesteps(num_steps)
    levels = levels_of(torch.arange(num_steps + 1), torch.full((num_steps + 1,), num_steps))
    assert_close(levels.float(), sampler.sigmas.float(), atol=2e-6, rtol=0)


def test_timesteps_are_those_of_the_sampler(latents: ClipLatents) -> None:
    walks = ClipWalks(latents, 64)
    first, others = timesteps(walks)
    for index in range(64):
        sampler = scheduler()
        sampler.set_timesteps(int(walks.num_steps[index]))
        # The sampler rounds 333.99… down: a whole number exactly may come out as the one below.
        assert abs(others[index] - sampler.timesteps[int(walks.step[index])]) <= 1
        assert first[index] == (0 if walks.is_given[index] else others[index])


def test_a_walk_by_true_predictions_ends_at_its_clip(latents: ClipLatents) -> None:
    walks = ClipWalks(latents, 8)
    for _ in range(40):
        is_last = walks.step == walks.num_steps - 1
        clean, velocity = walks.clean.clone(), walks.velocity
        ends = walks.noisy - velocity * walks.level[:, None, None, None, None] * walks.is_learned
        walks.advance(velocity)
        assert_close(ends[is_last], clean[is_last], atol=1e-5, rtol=0)


def test_a_given_first_frame_is_clean_and_has_no_weight(latents: ClipLatents) -> None:
    walks = ClipWalks(latents, 64)
    given = walks.is_given
    assert 0 < int(given.sum()) < 64
    assert_close(walks.noisy[given][:, :, 0], walks.clean[given][:, :, 0])
    assert float(weights(walks)[given][:, :, 0].abs().max()) == 0.0


def test_noise_has_the_traits_of_its_clip(latents: ClipLatents) -> None:
    walks = ClipWalks(latents, 64)
    begun = (walks.step == 0) & ~walks.is_given
    assert_close(traits_of(walks.noisy[begun]), latents.traits[walks.index[begun]], atol=1e-4, rtol=1e-4)
    given = (walks.step == 0) & walks.is_given
    assert AMOUNT < NUM_TRAITS
    assert not torch.allclose(traits_of(walks.noisy[given]), latents.traits[walks.index[given]])
