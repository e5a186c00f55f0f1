"""The strip and the animation of an evaluation."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

import showing
from evaluation import held_out
from showing import MAX_BYTES, MOTIONS, animation, shown, strip

NOISE = np.random.default_rng(1).integers(0, 256, (4, 17, 96, 96, 3), dtype=np.uint8)
CLIPS = NOISE // 32 + np.arange(17, dtype=np.uint8)[:, None, None, None] * 8


def test_the_first_scene_of_each_shown_motion_is_chosen() -> None:
    scenes = held_out(400)
    chosen = [scenes[index] for index in shown(scenes)]
    assert [scene.motion for scene in chosen] == list(MOTIONS)
    assert all(scene.neighbour is None for scene in chosen)
    assert shown(scenes[:0]) == []


def test_an_animation_plays_all_frames_for_ever_within_its_limit() -> None:
    data = animation(list(CLIPS), fps=8)
    assert len(data) <= MAX_BYTES
    image = Image.open(BytesIO(data))
    assert (image.n_frames, image.info["loop"]) == (17, 0)  # type: ignore[attr-defined]
    assert image.size == (4 * 192 + 3 * 8, 192)
    assert image.info["duration"] == 120, "GIF counts hundredths"


def test_clips_that_are_too_large_in_any_colors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(showing, "MAX_BYTES", 1_000)
    monkeypatch.setattr(showing, "_NUM_COLORS", (32, 16))
    with pytest.raises(ValueError, match="2 clips are more than 1,000 bytes in 16 colours"):
        animation(list(NOISE[:2, :3]), fps=8)


def test_a_strip_has_a_row_of_nine_frames_for_each_clip() -> None:
    assert strip(list(CLIPS)).size == (9 * 100, 4 * 100)
