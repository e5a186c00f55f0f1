"""The bundled model of the SDXL layout: small, equal to diffusers, and it takes no for an answer."""

import diffusers
import numpy as np
import pytest
import torch

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.engine import Engine
from diffuserve.models.bundled import bundled_models
from support.images import psnr

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

FOLDER = bundled_models()["tiny-sd"]
MAX_BYTES = 20_000_000
MIN_PSNR = 50.0  # decibel, float32 on a CPU
NEGATIVES = (None, "", "red", "a red heart")


@pytest.mark.parametrize("name", bundled_models())
def test_a_bundled_model_is_small(name: str) -> None:
    files = [path for path in bundled_models()[name].rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= MAX_BYTES


def test_guided_and_unguided_requests_equal_diffusers() -> None:
    reference = diffusers.StableDiffusionXLPipeline.from_pretrained(
        FOLDER, dtype=torch.float32, local_files_only=True, trust_remote_code=False
    )
    reference.set_progress_bar_config(disable=True)
    batch = [
        GenerationParams(
            prompt="a large heart on a yellow background",
            negative_prompt=negative,
            guidance_scale=guidance,
            num_inference_steps=steps,
            seed=seed,
        )
        for seed, (negative, guidance, steps) in enumerate(
            [(None, 1.0, 1), *((negative, 2.0, 2) for negative in NEGATIVES)]
        )
    ]
    with Engine.load("tiny-sd", device="cpu", dtype="float32") as engine:
        results = engine.generate(batch)
    for params, result in zip(batch, results, strict=True):
        assert params.seed is not None
        expected = reference(
            params.prompt,
            negative_prompt=params.negative_prompt,
            width=128,
            height=128,
            num_inference_steps=params.num_inference_steps,
            guidance_scale=params.guidance_scale,
            generator=torch.Generator("cpu").manual_seed(params.seed),
        ).images[0]
        assert psnr(result.images[0], expected) >= MIN_PSNR, params


def test_it_is_guided_in_eight_steps_by_default() -> None:
    with Engine.load("tiny-sd", device="cpu") as engine:
        spec = engine.spec
        [result] = engine.generate([GenerationParams(prompt="a circle on a blue background", seed=1)])
    assert (spec.family, spec.has_negative_prompt, spec.guidance_passes) == ("stable-diffusion-xl", True, 2)
    assert (result.params.num_inference_steps, result.params.guidance_scale) == (8, 2.0)
    corner = np.asarray(result.images[0])[:8, :8].reshape(-1, 3).mean(0)
    assert corner.argmax() == 2, "the background is blue"
