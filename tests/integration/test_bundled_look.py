"""The adapter that ships with tiny-emoji gilds what it draws, and nothing of what shares its steps."""

from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from diffuserve.domain.requests.adapter_use import AdapterUse
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine

NAME = "gilded"
PROMPTS = ("a large blue heart, 3d, on a white background", "a large green apple, flat, on a pink background")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    config = EngineConfig(num_threads=1, deterministic=True)
    with Engine.load("tiny-emoji", device="cpu", config=config) as engine:
        yield engine


def drawn(engine: Engine, *weights: float | None) -> list[Image.Image]:
    """Draw each prompt once for each weight of the adapter, all in one batch; `None` is without it."""
    requests = [
        GenerationParams(
            prompt=prompt, seed=2, adapters=None if weight is None else (AdapterUse(NAME, weight),)
        )
        for weight in weights
        for prompt in PROMPTS
    ]
    return [result.images[0] for result in engine.generate(requests)]


def middle(image: Image.Image) -> list[float]:
    """Return red, green and blue in the middle of an image."""
    pixels = np.asarray(image, float)
    height, width = (side // 8 for side in pixels.shape[:2])
    color: list[float] = pixels[3 * height : 5 * height, 3 * width : 5 * width].mean((0, 1)).tolist()
    return color


def test_things_are_gold_with_the_adapter_alone(engine: Engine) -> None:
    heart, apple, gold_heart, gold_apple = map(middle, drawn(engine, None, 1.0))
    assert heart[2] > heart[0] + 50
    assert apple[1] > apple[0] + 20
    for red, green, blue in (gold_heart, gold_apple):
        assert red > green > blue + 40


def test_images_without_it_are_the_same_beside_others_with_it(engine: Engine) -> None:
    alone = drawn(engine, None)
    mixed = drawn(engine, None, 1.0, 0.5)[: len(PROMPTS)]
    assert [image.tobytes() for image in mixed] == [image.tobytes() for image in alone]
