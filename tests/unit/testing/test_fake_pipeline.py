"""The fake family's images, whose every pixel is known."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.engine import Engine
from diffuserve.media.input_image import input_image
from diffuserve.testing.fake_pipeline import color_of

GRAY = input_image(Image.new("RGB", (48, 32), (100, 150, 200)))
DARK = input_image(Image.new("RGB", (48, 32), (50, 50, 50)))


def drawn(engine: Engine, **values: object) -> np.ndarray:
    params = GenerationParams.from_dict({"prompt": "a star", "guidance_scale": 1.0, "seed": 3, **values})
    return np.asarray(engine.generate(params).images[0]).astype(float)


def color(prompt: str) -> np.ndarray:
    return (color_of(prompt).flatten().numpy() + 1) * 127.5


@pytest.mark.parametrize("strength", [0.25, 0.5, 1.0])
def test_an_image_moves_to_the_color_of_the_prompt_by_its_strength(
    fake_engine: Engine, strength: float
) -> None:
    image = drawn(fake_engine, image=GRAY, strength=strength)
    assert image.shape == (32, 48, 3), "it keeps its size"
    expected = np.array([100, 150, 200]) * (1 - strength) + strength * color("a star")
    assert np.abs(image - expected).max() <= 1


def test_several_images_are_mixed(fake_engine: Engine) -> None:
    image = drawn(fake_engine, image=(GRAY, DARK), strength=0.5)
    assert np.abs(image - (np.array([75, 100, 125]) + color("a star")) / 2).max() <= 1


def test_a_mask_keeps_what_is_black(fake_engine: Engine) -> None:
    mask = Image.new("L", (48, 32), 0)
    mask.paste(255, (0, 0, 24, 32))
    image = drawn(fake_engine, image=GRAY, mask=input_image(mask, "L"), num_inference_steps=3)
    assert np.abs(image[:, :24] - color("a star")).max() <= 1
    assert np.abs(image[:, 24:] - np.array([100, 150, 200])).max() <= 1


def test_fewer_steps_are_taken_from_an_image(fake_engine: Engine) -> None:
    params = GenerationParams(prompt="a star", image=GRAY, strength=0.5, num_inference_steps=4)
    fake_engine.generate(params)
    assert fake_engine.stats.num_steps == 2


def test_a_control_image_draws_the_result_to_itself_by_its_scale(fake_engine: Engine) -> None:
    for scale in (0.0, 1.0, 2.0):
        image = drawn(fake_engine, control_image=DARK, control_scale=scale)
        assert image.shape == (32, 48, 3), "it has the size of what guides it"
        assert np.abs(image - (color("a star") + scale / 2 * (50 - color("a star")))).max() <= 1


def test_a_clip_ends_with_its_last_frame_whatever_is_drawn_beside_it(fake_engine: Engine) -> None:
    params = GenerationParams(
        prompt="a star", image=GRAY, last_image=DARK, num_frames=3, strength=1.0, guidance_scale=1.0, seed=3
    )
    beside = replace(params, last_image=None, control_image=GRAY)
    ending, guided = fake_engine.generate([params, beside])
    frames = [np.asarray(frame).astype(float) for frame in ending.frames[0]]
    assert np.abs(frames[0] - color("a star")).max() <= 1
    assert np.abs(frames[-1] - 50).max() <= 1
    assert np.abs(np.asarray(guided.frames[0][-1]) - 50.0).max() > 10
