"""Requests of a mixed batch get the images that diffusers' own pipeline generates (INV-2)."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from PIL.Image import Image

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.models.bundled import bundled_models
from diffuserve.models.pipelines.base import PackedPipeline, packed
from diffuserve.models.registry import load_pipeline
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.testing.checkpoints import write_flux_checkpoint
from support.images import psnr

MIN_PSNR = 50.0  # decibel, float32 on a CPU
PROMPTS = ("a red circle", "a small yellow star at the top left on a blue background", "ring " * 40, "x")

Kind = Literal["schnell", "dev"]


def load_reference(folder: Path) -> Any:
    from diffusers import FluxPipeline

    reference = FluxPipeline.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False
    )
    reference.set_progress_bar_config(disable=True)
    return reference


def draw_with_reference(reference: Any, params: GenerationParams) -> list[Image]:
    assert params.seed is not None
    seeds = range(params.seed, params.seed + params.num_images)
    images: list[Image] = reference(
        params.prompt,
        width=params.width,
        height=params.height,
        num_inference_steps=params.num_inference_steps,
        guidance_scale=params.guidance_scale,
        max_sequence_length=params.max_sequence_length,
        num_images_per_prompt=params.num_images,
        generator=[torch.Generator("cpu").manual_seed(seed) for seed in seeds],
    ).images
    return images


def make_mixed_batch(kind: Kind, seed: int, size: int = 8) -> list[GenerationParams]:
    """Requests that differ in everything that may differ; steps 1-8 all occur."""
    draw = random.Random(seed)
    return [
        GenerationParams(
            prompt=draw.choice(PROMPTS),
            width=16 * draw.randint(2, 12),
            height=16 * draw.randint(2, 12),
            num_inference_steps=1 + i % 8,
            guidance_scale=draw.choice([1.0, 3.5, 7.25]) if kind == "dev" else 0.0,
            seed=draw.randrange(2**40),
            num_images=draw.choice([1, 1, 2]),
            max_sequence_length=draw.choice([8, 32, 77]),
        )
        for i in range(size)
    ]


def assert_parity(engine: Engine, folder: Path, batch: list[GenerationParams]) -> None:
    reference = load_reference(folder)
    for params, result in zip(batch, engine.generate(batch), strict=True):
        for ours, theirs in zip(result.images, draw_with_reference(reference, params), strict=True):
            assert psnr(ours, theirs) >= MIN_PSNR, params
    assert engine.stats.mean_requests_per_step > 1, "requests shared steps"


@pytest.fixture(scope="module", params=["schnell", "dev"])
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


@pytest.fixture(scope="module")
def checkpoint(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_flux_checkpoint(tmp_path_factory.mktemp("models") / kind, kind=kind, seed=5)


@pytest.fixture(scope="module")
def pipeline(checkpoint: Path) -> PackedPipeline:
    return packed(load_pipeline(str(checkpoint), LoadPlan(torch.device("cpu"), torch.float32)))


@pytest.fixture
def engine(pipeline: PackedPipeline) -> Iterator[Engine]:
    with Engine(pipeline, EngineConfig(token_budget=100_000)) as engine:
        yield engine


@pytest.mark.parametrize("seed", [1, *(pytest.param(more, marks=pytest.mark.slow) for more in (2, 3))])
def test_a_mixed_batch_equals_diffusers(engine: Engine, kind: Kind, seed: int, checkpoint: Path) -> None:
    """Compare one batch drawn by chance; more of them are slow."""
    assert_parity(engine, checkpoint, make_mixed_batch(kind, seed))


def test_the_images_of_the_reference_differ_from_one_another(kind: Kind, checkpoint: Path) -> None:
    """Rule out that parity on random weights holds because all images are grey."""
    reference = load_reference(checkpoint)
    first, second = make_mixed_batch(kind, seed=1)[:2]
    same_size = GenerationParams(**{**second.to_dict(), "width": first.width, "height": first.height})
    images = [draw_with_reference(reference, params)[0] for params in (first, same_size)]
    assert psnr(*images) < 25
    assert np.asarray(images[0]).std() > 10


@pytest.mark.parametrize("dynamic", [False, True])
def test_shifted_schedules_equal_diffusers(dynamic: bool, tmp_path: Path) -> None:
    folder = write_flux_checkpoint(tmp_path, kind="schnell", use_dynamic_shifting=dynamic, shift=2.5, seed=9)
    config = EngineConfig(token_budget=100_000)
    with Engine.load(str(folder), device="cpu", dtype="float32", config=config) as engine:
        assert_parity(engine, folder, make_mixed_batch("schnell", seed=4, size=4))


def test_sharded_weights_give_the_same_images(tmp_path: Path) -> None:
    folder = write_flux_checkpoint(tmp_path, kind="dev", num_files=3, seed=5)
    assert len(list((folder / "transformer").glob("*.safetensors"))) >= 3
    config = EngineConfig(token_budget=100_000)
    with Engine.load(str(folder), device="cpu", dtype="float32", config=config) as engine:
        assert_parity(engine, folder, make_mixed_batch("dev", seed=1, size=4))


def test_the_bundled_model_equals_diffusers(tiny_engine: Engine) -> None:
    batch = [
        GenerationParams(
            prompt=prompt,
            width=width,
            height=height,
            num_inference_steps=steps,
            guidance_scale=0.0,
            seed=width,
            max_sequence_length=32,
        )
        for prompt, width, height, steps in [
            ("a red circle on a white background", 128, 128, 4),
            ("a large blue star on a yellow background", 192, 64, 2),
            ("a green square left of a pink ring", 96, 160, 7),
        ]
    ]
    assert_parity(tiny_engine, bundled_models()["tiny-flux"], batch)


def test_tiny_emoji_equals_diffusers() -> None:
    """Its prompts are in small letters: diffusers does not write them so, as the engine does."""
    sizes = [(128, 128, 4), (96, 128, 2), (112, 96, 5)]
    prompts = ("a fox left of a red apple, 3d, on a blue background", "a large pizza, flat", "a panda")
    batch = [
        GenerationParams(prompt=prompt, width=width, height=height, num_inference_steps=steps, seed=width)
        for prompt, (width, height, steps) in zip(prompts, sizes, strict=True)
    ]
    resolved = [replace(params, guidance_scale=0.0, max_sequence_length=32) for params in batch]
    config = EngineConfig(token_budget=100_000)
    with Engine.load("tiny-emoji", device="cpu", dtype="float32", config=config) as engine:
        assert_parity(engine, bundled_models()["tiny-emoji"], resolved)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_request_in_a_batch_equals_the_request_alone(engine: Engine, kind: Kind, num_threads: int) -> None:
    """Check INV-1 for several numbers of threads."""
    batch = make_mixed_batch(kind, seed=6)
    alone = [engine.generate([params])[0] for params in batch]
    config = EngineConfig(token_budget=100_000, num_threads=num_threads)
    with Engine(engine.pipeline, config) as other:
        together = other.generate(batch)
    for single, shared in zip(alone, together, strict=True):
        for expected, image in zip(single.images, shared.images, strict=True):
            assert psnr(image, expected) >= MIN_PSNR


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
def test_half_precision_stays_close_to_float32(dtype: str, tmp_path: Path) -> None:
    folder = write_flux_checkpoint(tmp_path, kind="dev", seed=5)
    batch = make_mixed_batch("dev", seed=2, size=3)
    images = []
    for chosen in ("float32", dtype):
        with Engine.load(str(folder), device="cpu", dtype=chosen) as engine:
            images.append([result.images[0] for result in engine.generate(batch)])
    # The noise itself is drawn in the model's dtype, as diffusers does, so only closeness can hold.
    assert min(psnr(exact, rounded) for exact, rounded in zip(*images, strict=True)) > 15
