"""The noise settles what the words of a clip leave open."""

import random

import torch
from torch.testing import assert_close

from choreography import AMOUNT, NUM_TRAITS, choreograph, set_traits, traits_of
from motions import Motion, draw_clip_scene

SHAPE = (16, 5, 12, 12)


def test_noise_is_made_to_have_given_traits_and_stays_normal() -> None:
    traits = torch.randn(32, NUM_TRAITS)
    noise = set_traits(torch.randn(32, *SHAPE), traits)
    assert_close(traits_of(noise), traits)
    assert abs(float(noise.std()) - 1) < 0.01


def test_chosen_traits_are_set_and_the_others_stay() -> None:
    noise, traits = torch.randn(8, *SHAPE), torch.randn(8, NUM_TRAITS)
    chosen = torch.zeros_like(traits)
    chosen[:, AMOUNT] = 1
    changed = traits_of(set_traits(noise, traits, chosen))
    assert_close(changed[:, AMOUNT], traits[:, AMOUNT])
    assert_close(changed[:, :AMOUNT], traits_of(noise)[:, :AMOUNT])


def test_objects_stay_inside_the_clip_and_apart() -> None:
    chance = random.Random("inside")
    for _ in range(300):
        scene = draw_clip_scene(chance)
        tracks = choreograph(scene, torch.randn(NUM_TRAITS), 17).tracks
        for track in tracks:
            for center in (track.x, track.y):
                assert (center - track.radius).min() > 0
                assert (center + track.radius).max() < 1
        if scene.neighbor is not None:
            first, second = tracks
            gap = torch.hypot(first.x - second.x, first.y - second.y) - first.radius - second.radius
            assert gap.min() > 0


def test_a_bouncing_object_touches_the_floor_twice() -> None:
    chance = random.Random("bounces")
    scene = next(scene for _ in range(1000) if (scene := draw_clip_scene(chance)).motion == Motion.BOUNCES)
    (track, *_) = choreograph(scene, torch.zeros(NUM_TRAITS), 170).tracks[::-1]
    falls = track.y.diff() > 0
    assert int((falls[:-1] & ~falls[1:]).sum()) == 2
