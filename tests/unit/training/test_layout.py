"""Properties of an image that the seed determines."""

import torch
from torch.testing import assert_close

from layout import NUM_TRAITS, noise_with, place, traits_of
from scenes import Scene, Thing

LEFT = Scene((Thing("star", "red", "small", "left"),))


def test_noise_is_made_to_have_given_traits_and_stays_normal() -> None:
    traits = torch.randn(64, NUM_TRAITS)
    noise = noise_with(traits, 16, 16, 16)
    assert_close(traits_of(noise), traits)
    assert abs(float(noise.std()) - 1) < 0.01


def test_traits_of_any_noise_are_standard_normal_at_any_size() -> None:
    for height, width in ((16, 16), (8, 24)):
        traits = traits_of(torch.randn(2_000, 16, height, width))
        assert abs(float(traits.mean())) < 0.05
        assert abs(float(traits.std()) - 1) < 0.05


def test_seeds_move_an_object_within_what_its_words_mean() -> None:
    places = [place(LEFT, torch.randn(NUM_TRAITS)).things[0] for _ in range(500)]
    assert max(thing.x for thing in places) < 0.36
    assert max(thing.x for thing in places) - min(thing.x for thing in places) > 0.08
    assert all(thing.x - thing.radius > 0 for thing in places)
    assert all(0.1 < thing.radius < 0.13 for thing in places)


def test_an_object_without_a_place_may_be_anywhere() -> None:
    scene = Scene((Thing("star", "red", "small"),))
    places = [place(scene, torch.randn(NUM_TRAITS), width=2.0).things[0] for _ in range(500)]
    assert min(thing.x for thing in places) < 0.3
    assert max(thing.x for thing in places) > 1.7


def test_objects_stand_as_their_relation_says_and_apart() -> None:
    scene = Scene((Thing("ring", "red", "large"), Thing("cross", "blue", "large")), relation="above")
    for _ in range(200):
        first, second = place(scene, torch.randn(NUM_TRAITS)).things
        assert second.y - first.y > first.radius + second.radius
