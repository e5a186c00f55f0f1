"""The strip and the animation of an evaluation."""

from io import BytesIO

import numpy as np
from PIL import Image

from evaluation import held_out
from showing import MOTIONS, animation, shown, strip

NOISE = np.random.default_rng(1).integers(0, 256, (4, 17, 96, 96, 3), dtype=np.uint8)
CLIPS = NOISE // 32 + np.arange(17, dtype=np.uint8)[:, None, None, None] * 8


def test_the_first_scene_of_each_shown_motion_is_chosen() -> None:
    scenes = held_out(400)
    chosen = [scenes[index] for index in shown(scenes)]
    assert [scene.motion for scene in chosen] == list(MOTIONS)
    assert all(scene.neighbor is None for scene in chosen)
    assert shown(scenes[:0]) == []


def test_an_animation_plays_all_frames_for_ever() -> None:
    data = animation(list(CLIPS), fps=8)
    image = Image.open(BytesIO(data))
    assert (image.n_frames, image.info["loop"]) == (17, 0)  # type: ignore[attr-defined]
    assert image.size == (4 * 192 + 3 * 8, 192)
    image.load()
    assert image.info["duration"] == 125


def test_a_strip_has_a_row_of_nine_frames_for_each_clip() -> None:
    assert strip(list(CLIPS)).size == (9 * 100, 4 * 100)
