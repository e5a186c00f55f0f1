"""Images above a set size are decoded in tiles."""

import numpy as np
import pytest

from diffuserve.domain.params import GenerationParams
from diffuserve.engine.engine import Engine
from diffuserve.models.flux import vae
from support.images import psnr


def test_tiles_bound_memory_and_give_nearly_the_whole_image(
    tiny_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = GenerationParams(prompt="a red circle", width=256, height=256, num_inference_steps=2, seed=1)
    whole = np.asarray(tiny_engine.generate([params])[0].images[0], dtype=float)
    monkeypatch.setattr(vae, "TILE_ABOVE_PIXELS", 128 * 128)
    tiled = np.asarray(tiny_engine.generate([params])[0].images[0], dtype=float)
    assert not np.array_equal(whole, tiled), "it did run in tiles"
    # Each tile is normalised by its own mean and deviation. Another prompt's image is some 130 off.
    assert np.abs(whole - tiled).mean() < 8, "of 255 levels"


def test_images_below_the_size_are_decoded_whole_again(tiny_engine: Engine) -> None:
    params = GenerationParams(prompt="a red circle", width=128, height=128, num_inference_steps=1, seed=1)
    first, second = (tiny_engine.generate([params])[0].images[0] for _ in range(2))
    assert psnr(first, second) >= 50
