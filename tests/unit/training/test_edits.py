"""Tasks to recolor an object, and their figures."""

import numpy as np
import pytest

from checker import judge
from evaluate import held_out
from evaluate_edits import Edit, decibels, figures_of, recolor

EDITS = [recolor(scene, seed) for seed, scene in enumerate(held_out(12))]


@pytest.mark.parametrize("edit", EDITS)
def test_a_task_is_yet_to_be_done_and_its_mask_holds_the_object(edit: Edit) -> None:
    object_pixels = np.abs(edit.image[edit.mask].astype(int) - edit.image[0, 0]).max(axis=1) > 60
    assert 0.1 < object_pixels.mean() < 0.9
    assert not judge(edit.image, edit.wanted).color


def test_figures_tell_change_from_keeping() -> None:
    images = [edit.image for edit in EDITS]
    figures = figures_of(images, EDITS)
    assert (figures["color"], figures["well kept"]) == (0.0, 100.0)
    spoiled = figures_of([255 - image for image in images], EDITS)
    assert spoiled["well kept"] == 0.0


def test_equal_images_are_as_near_as_can_be() -> None:
    assert decibels(EDITS[0].image, EDITS[0].image) > 100
