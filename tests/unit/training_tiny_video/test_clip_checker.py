"""The checker recognizes the clips that were drawn, and names what is wrong with them."""

import random
from collections import Counter

import pytest
import torch

from checker import Pixels
from choreography import NUM_TRAITS, choreograph
from clip_checker import ClipVerdict, judge_clip
from motions import ClipScene, Direction, Motion, Speed, Thing, draw_clip_scene
from render import render

NUM_FRAMES, SIDE = 17, 96
RED_STAR = Thing("star", "red")


def pixels(scene: ClipScene, seed: int = 0) -> Pixels:
    traits = torch.randn(NUM_TRAITS, generator=torch.Generator().manual_seed(seed))
    clip = render(choreograph(scene, traits, NUM_FRAMES), NUM_FRAMES, SIDE)
    drawn: Pixels = ((clip + 1) * 127.5).round().to(torch.uint8).permute(1, 2, 3, 0).numpy()
    return drawn


def wrong(verdict: ClipVerdict) -> set[str]:
    return {name for name, is_right in vars(verdict).items() if not is_right}


@pytest.mark.parametrize("has_neighbor", [False, True])
def test_true_drawings_are_right(has_neighbor: bool) -> None:
    chance = random.Random(f"true drawings {has_neighbor}")
    scenes = [draw_clip_scene(chance, has_neighbor) for _ in range(40)]
    faults = [(scene, wrong(judge_clip(pixels(scene, seed), scene))) for seed, scene in enumerate(scenes)]
    assert [(scene, names) for scene, names in faults if names] == []


@pytest.mark.parametrize("motion", Motion)
def test_every_motion_is_told_from_all_others(motion: Motion) -> None:
    drawn = pixels(scene_with(motion))
    recognized = [other for other in Motion if judge_clip(drawn, scene_with(other)).motion]
    assert recognized == [motion]


def scene_with(motion: Motion) -> ClipScene:
    return ClipScene(
        RED_STAR,
        motion,
        direction=Direction.RIGHT if motion == Motion.MOVES else None,
        becomes="blue" if motion == Motion.TURNS else None,
    )


MOVES = ClipScene(RED_STAR, Motion.MOVES, Direction.RIGHT, Speed.FAST)


@pytest.mark.parametrize(
    ("drawn", "fault"),
    [
        (ClipScene(Thing("heart", "red"), Motion.MOVES, Direction.RIGHT, Speed.FAST), {"shape"}),
        (ClipScene(Thing("star", "green"), Motion.MOVES, Direction.RIGHT, Speed.FAST), {"color"}),
        (ClipScene(RED_STAR, Motion.MOVES, Direction.LEFT, Speed.FAST), {"motion"}),
        (ClipScene(RED_STAR, Motion.MOVES, Direction.RIGHT, Speed.SLOW), {"speed"}),
        (ClipScene(RED_STAR, Motion.MOVES, Direction.RIGHT, Speed.FAST, background="black"), {"background"}),
    ],
)
def test_what_is_wrong_is_named(drawn: ClipScene, fault: set[str]) -> None:
    assert wrong(judge_clip(pixels(drawn), MOVES)) == fault


def test_a_neighbor_on_the_other_side_is_wrong_in_its_place() -> None:
    above, below = (
        ClipScene(
            RED_STAR, Motion.MOVES, Direction.RIGHT, neighbor=Thing("square", "blue"), relation=relation
        )
        for relation in ("above", "below")
    )
    assert wrong(judge_clip(pixels(above), below)) == {"place"}


def test_an_object_that_is_missing_in_one_frame_is_a_wrong_count() -> None:
    clip = pixels(MOVES)
    clip[8] = clip[8, 0, 0]
    assert not judge_clip(clip, MOVES).count


def test_a_jump_is_not_smooth() -> None:
    clip = pixels(ClipScene(RED_STAR, Motion.MOVES, Direction.RIGHT, Speed.SLOW))
    clip[3:] = pixels(ClipScene(RED_STAR, Motion.MOVES, Direction.LEFT, Speed.SLOW), seed=3)[3:]
    assert not judge_clip(clip, MOVES).smooth


def test_an_empty_clip_shows_nothing() -> None:
    clip = pixels(MOVES)
    clip[:] = clip[0, 0, 0]
    assert not judge_clip(clip, MOVES).count


def test_scenes_cover_every_motion_and_hold_out_about_a_tenth() -> None:
    chance = random.Random("coverage")
    motions = Counter(draw_clip_scene(chance).motion for _ in range(600))
    assert set(motions) == set(Motion)
    combinations = [
        ClipScene(Thing(shape, color), motion).is_held_out
        for shape in ("circle", "square", "triangle", "star", "heart")
        for color in ("red", "green", "blue", "yellow", "orange", "purple", "pink", "cyan")
        for motion in Motion
    ]
    assert 0.05 < sum(combinations) / len(combinations) < 0.15
