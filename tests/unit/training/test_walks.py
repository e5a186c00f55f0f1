"""Images half drawn, and the way from there to the true ones."""

import pytest
import torch

from diffuserve.models.families.packed_images.latents import pack_latents, unpack_latents
from latents import Latents
from layout import NUM_TRAITS, noise_with, traits_of
from walks import Walks

NUM_IMAGES, COUNT = 7, 9


@pytest.fixture
def latents() -> Latents:
    torch.manual_seed(0)
    return Latents(
        means=torch.randn(NUM_IMAGES, 16, 8, 12),
        traits=torch.randn(NUM_IMAGES, NUM_TRAITS),
        things=torch.zeros(NUM_IMAGES, 24),
        shift=0.25,
        scale=2.0,
    )


def test_who_follows_the_lesson_arrives_at_the_image(latents: Latents) -> None:
    walks, num_arrived = Walks(latents, COUNT), 0
    for _ in range(50):
        is_last, said = walks.left == 1, walks.velocity
        clean = walks.clean[is_last].clone()
        arrived = (walks.noisy - said / walks.num_steps[:, None, None])[is_last]
        assert torch.allclose(arrived, clean, atol=1e-4)
        num_arrived += int(is_last.sum())
        walks.advance(said)
    assert num_arrived > COUNT


def test_from_anywhere_the_lesson_leads_to_the_image(latents: Latents) -> None:
    """The walk also leads back from states reached by a network that is always wrong."""
    walks = Walks(latents, COUNT)
    for _ in range(10):
        walks.advance(torch.randn_like(walks.noisy))
    end = walks.noisy - (walks.left / walks.num_steps)[:, None, None] * walks.velocity
    assert torch.allclose(end, pack_latents(latents.scaled(walks.index)), atol=1e-4)


def test_levels_go_down_evenly_and_those_that_arrived_begin_anew(latents: Latents) -> None:
    walks = Walks(latents, COUNT)
    for _ in range(30):
        left, num_steps = walks.left.clone(), walks.num_steps.clone()
        walks.advance(walks.velocity)
        goes_on = left > 1
        assert torch.equal(walks.left[goes_on], left[goes_on] - 1)
        assert torch.equal(walks.num_steps[goes_on], num_steps[goes_on])
        assert (walks.left >= 1).all()
        assert (walks.left <= walks.num_steps).all()
        assert ((walks.level > 0) & (walks.level <= 1)).all()


def test_walks_begin_at_the_noise_that_settles_their_image(latents: Latents) -> None:
    walks = Walks(latents, 200)
    begins = (walks.left == walks.num_steps).nonzero()[:, 0]
    assert len(begins) > 20
    noise = unpack_latents(walks.noisy[begins], rows=4)
    assert torch.allclose(traits_of(noise), latents.traits[walks.index[begins]], atol=1e-4)


def test_tokens_are_packed_as_the_pipeline_packs_them() -> None:
    from diffusers import FluxPipeline

    latents = torch.randn(2, 16, 8, 12)
    assert torch.equal(pack_latents(latents), FluxPipeline._pack_latents(latents, 2, 16, 8, 12))


def test_no_noise_at_all_is_as_good_as_any() -> None:
    assert noise_with(torch.zeros(0, NUM_TRAITS), 16, 8, 12).shape == (0, 16, 8, 12)
