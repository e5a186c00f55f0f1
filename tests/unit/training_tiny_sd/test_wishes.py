"""Words that leave something open say nothing that the scene does not show."""

import random
import re
from collections import Counter
from dataclasses import replace

import pytest

from diffuserve.models.vocabulary import read_vocabulary
from scenes import COLORS, SHAPES, Scene, Thing
from wish_encoders import labels_of
from wishes import NOTHING, OPEN, USUAL, Wanted, Wish, fragment, scene_of, sentence, worded

RED_HEART = Scene((Thing("heart", "red", "large", "left"),), "blue")
PAIR = Scene((Thing("circle", "green"), Thing("ring", "pink")), None, "right of")


def test_every_shape_has_a_color_by_habit_and_no_two_the_same() -> None:
    assert list(USUAL) == list(SHAPES)
    assert len(set(USUAL.values())) == len(SHAPES)


def test_habits_show_in_the_scenes_and_held_out_ones_are_never_among_them() -> None:
    scenes = [scene_of(index) for index in range(2000)]
    hearts = [thing for scene in scenes for thing in scene.things if thing.shape == "heart"]
    share = sum(thing.color == "red" for thing in hearts) / len(hearts)
    assert 0.25 < share < 0.5
    assert not any(scene.is_held_out for scene in scenes)
    for scene in scenes:
        assert all(thing.color != (scene.background or "white") for thing in scene.things)


@pytest.mark.parametrize("scene", [RED_HEART, PAIR])
def test_a_sentence_says_nothing_wrong_and_sometimes_less_than_all(scene: Scene) -> None:
    wishes = [sentence(scene, random.Random(number)) for number in range(300)]
    for wish in wishes:
        assert (wish.background, wish.relation) == (scene.background, scene.relation)
        for wanted, thing in zip(wish.things, scene.things, strict=True):
            assert wanted.shape in (None, thing.shape)
            assert wanted.color in (None, thing.color)
            if wanted.color is None:
                assert thing.color not in wish.words.split()
    assert {wish.things[0].color for wish in wishes} == {None, scene.things[0].color}
    assert {wish.things[0].shape for wish in wishes} == {None, scene.things[0].shape}


def test_silence_mostly_means_the_habit() -> None:
    """Among hearts of which the words leave the color open, red ones are more than among all hearts."""
    chance, told, open_ = random.Random(0), Counter[bool](), Counter[bool]()
    for index in range(4000):
        scene = scene_of(index)
        for thing, wanted in zip(scene.things, sentence(scene, chance).things, strict=True):
            (told if wanted.color else open_)[thing.color == USUAL[thing.shape]] += 1
    assert open_[True] / open_.total() > 1.4 * told[True] / told.total()


def test_fragments_are_bare_words_of_one_object_or_of_the_background() -> None:
    said = {fragment(RED_HEART, random.Random(number)).words for number in range(400)}
    assert {"red", "heart", "red heart", "blue background"} <= said
    assert not any(words.startswith(("a ", "an ")) for words in said)
    wish = next(wish for n in range(400) if (wish := fragment(RED_HEART, random.Random(n))).words == "red")
    assert wish == Wish("red", (Wanted(color="red"),), OPEN, OPEN)


def test_plain_words_leave_out_what_is_open() -> None:
    assert worded([Wanted("heart")], None, None, None) == "a heart"
    assert worded([Wanted(color="orange", size="small")], None, "blue", None) == (
        "a small orange shape on a blue background"
    )
    pair = [Wanted("star", "red"), Wanted("ring")]
    assert worded(pair, "above", None, None) == "a red star above a ring"


def test_open_and_unsaid_parts_have_names_of_their_own_and_the_left_object_comes_first() -> None:
    chance = random.Random(3)
    wishes = [sentence(PAIR, chance) for _ in range(99)]
    full = next(wish for wish in wishes if all(thing.shape and thing.color for thing in wish.things))
    turned = replace(full, things=full.things[::-1], relation="left of")
    assert labels_of(full)[:8] == labels_of(turned)[:8], "what stands where is the same"
    assert labels_of(full)[-2] == 0, "a sentence that names no background means white"
    assert labels_of(NOTHING)[-2:] == [1, 1], "nothing at all leaves it open"
    assert labels_of(NOTHING)[:8] == [-100] * 8
    assert 1 + list(COLORS).index("pink") == labels_of(full)[1]


def test_the_model_declares_the_words_that_it_is_taught() -> None:
    vocabulary = read_vocabulary("tiny-sd")
    assert vocabulary is not None
    chance = random.Random(1)
    wishes = [sentence(scene_of(index), chance) for index in range(2_000)]
    said = Counter(word for wish in wishes for word in re.findall(r"[a-z]+", wish.words.lower()))
    # Made-up words, which stand for nothing, are said once.
    assert vocabulary.own.unknown(" ".join(word for word, times in said.items() if times >= 10)) == []
