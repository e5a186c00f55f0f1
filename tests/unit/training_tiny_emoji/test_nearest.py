"""Drawings are compared with pictures of the training that are most like them."""

import random
from pathlib import Path

import torch
from torch import Tensor
from torch.testing import assert_close

import emoji_text
from emoji_autoencoder import build
from emoji_tokenizers import load_tokenizers
from emoji_walks import Batch, Studio
from nearest import decibels, nearest, trained_like
from pictures import Item, Picture
from support.two_things import BLUE, THINGS, two_sprites

SIZE = (32, 32)
PICTURE = Picture((Item(1, "large", "top"),), "3d", "black")


def the_way(noisy: Tensor, level: Tensor, batch: Batch, _size: tuple[int, int]) -> Tensor:
    return (noisy - batch.clean) / level[:, None, None]


def test_a_drawing_that_is_right_is_nearest_to_what_was_asked_for(tmp_path: Path) -> None:
    lesson = emoji_text.Lesson(THINGS, two_sprites(), load_tokenizers(tmp_path, THINGS), torch.device("cpu"))
    studio = Studio(build(), emoji_text.build(lesson.tokenize.num_words), lesson)
    [found] = nearest(studio, the_way, [PICTURE], SIZE, 5)
    assert found.to_asked > 40 > found.to_trained


def test_pictures_of_the_training_show_the_same_thing_elsewhere() -> None:
    images = [trained_like(PICTURE, two_sprites(), SIZE, random.Random(seed)) for seed in range(6)]
    for image in images:
        color = image.flatten(1)[:, image[2].argmax()]
        assert_close((color + 1) / 2, torch.tensor(BLUE))
    assert len({tuple(image.flatten().tolist()) for image in images}) > 1


def test_decibels_are_of_the_whole_range() -> None:
    assert abs(decibels(torch.ones(3, 4, 4), -torch.ones(3, 4, 4))) < 1e-6
    assert abs(decibels(torch.zeros(3, 4, 4), torch.full((3, 4, 4), 0.2)) - 20) < 1e-4
