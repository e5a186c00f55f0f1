"""Images above a limit are decoded in tiles."""

import numpy as np
import pytest

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.engine import Engine
from diffuserve.models.autoencoder import image_vae
from support.images import psnr


def test_a_tiled_decode_is_close_to_a_whole_decode(
    tiny_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = GenerationParams(prompt="a red circle", width=256, height=256, num_inference_steps=2, seed=1)
    whole = np.asarray(tiny_engine.generate([params])[0].images[0], dtype=float)
    monkeypatch.setattr(image_vae, "TILE_ABOVE_PIXELS", 128 * 128)
    tiled = np.asarray(tiny_engine.generate([params])[0].images[0], dtype=float)
    assert not np.array_equal(whole, tiled), "the decode ran in tiles"
    # Each tile is normalized by its own mean and deviation. Another prompt's image differs by some 130.
    assert np.abs(whole - tiled).mean() < 8, "of 255 levels"


def test_images_below_the_limit_are_decoded_whole(tiny_engine: Engine) -> None:
    params = GenerationParams(prompt="a red circle", width=128, height=128, num_inference_steps=1, seed=1)
    first, second = (tiny_engine.generate([params])[0].images[0] for _ in range(2))
    assert psnr(first, second) >= 50
