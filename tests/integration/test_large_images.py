"""Images above a limit are decoded in strips."""

import numpy as np
import pytest

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.engine import Engine
from diffuserve.models.layers.strips import strip_sizes


def test_an_image_in_strips_is_the_whole_one(tiny_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    params = GenerationParams(prompt="a red circle", width=256, height=256, num_inference_steps=2, seed=1)
    whole = np.asarray(tiny_engine.generate([params])[0].images[0], dtype=int)
    monkeypatch.setattr(strip_sizes, "MAX_WHOLE_PIXELS", 128 * 128)
    monkeypatch.setattr(strip_sizes, "CPU_STRIP_SCALARS", 1 << 14)
    in_strips = np.asarray(tiny_engine.generate([params])[0].images[0], dtype=int)
    assert np.abs(whole - in_strips).max() <= 1, "of 255 levels: what lies between two may round to either"
