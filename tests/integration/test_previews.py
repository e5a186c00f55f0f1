"""Previews look like the image and cost a small part of a step."""

import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import jaxtyping
import numpy as np
import pytest
from PIL import Image

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.engine import Engine
from diffuserve.models.pipelines.base import DenoiseInput, packed
from support.latents import first_latents

PARAMS = GenerationParams(prompt="a large blue star on a yellow background", num_inference_steps=4, seed=3)


def quickest_seconds(run: Callable[[], object], times: int = 30) -> float:
    """Return the least seconds of several runs, since other processes use the machine too."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def test_previews_converge_to_the_image(tiny_engine: Engine) -> None:
    request_id = tiny_engine.add(PARAMS, preview=True)
    previews, image = [], None
    while outputs := tiny_engine.step():
        for output in outputs:
            assert output.request_id == request_id
            previews += [output.preview] if output.preview is not None else []
            image = output.result.images[0] if output.result is not None else image
    assert image is not None
    assert len(previews) == 4
    assert max(previews[0].size) >= 128, "large enough to look at"
    small = np.asarray(image.resize(previews[0].size, Image.Resampling.BOX), dtype=float)
    distances = [np.abs(np.asarray(preview, dtype=float) - small).mean() for preview in previews]
    assert distances[-1] < 40, "of 255 levels, in the mean"
    levels = [np.asarray(preview, dtype=float) for preview in previews]
    left = [np.abs(preview - levels[-1]).mean() for preview in levels]
    assert all(later < earlier - 2 for earlier, later in pairwise(left)), "they do not look alike"
    assert np.corrcoef(np.asarray(previews[-1], dtype=float).ravel(), small.ravel())[0, 1] > 0.8


@pytest.fixture
def without_shape_checks() -> Iterator[None]:
    """Have tests' checks of tensors' shapes cost nothing, as they are not made outside of tests."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.alone
@pytest.mark.usefixtures("without_shape_checks")
def test_a_preview_costs_less_than_two_percent_of_a_step(tiny_engine: Engine) -> None:
    pipeline = packed(tiny_engine.pipeline)
    params = pipeline.spec.resolve(PARAMS, seed=0)
    latents = first_latents(pipeline, params)
    at = pipeline.schedule(params).at(1)
    request = DenoiseInput(params, pipeline.encode([params])[0], latents, timestep=500.0)
    prediction = pipeline.denoise([request])[0]
    step = quickest_seconds(lambda: pipeline.denoise([request]))
    preview = quickest_seconds(
        lambda: pipeline.preview(pipeline.sampler(params).predict_x0(latents, prediction, at), params),
        times=200,
    )
    assert preview < 0.02 * step, f"{preview * 1e6:.0f} of {step * 1e6:.0f} microseconds"
