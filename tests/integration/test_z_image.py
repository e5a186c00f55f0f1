"""Z-Image generates what diffusers' pipelines do (INV-2), in any company (INV-1)."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image

from diffuserve.domain.models.quantization import Quantization
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.media.input_image import as_image, input_image
from diffuserve.testing.z_image_checkpoints import write_z_image_checkpoint
from support.images import psnr
from support.pretend_cuda import pretend_cuda

MIN_PSNR = 50.0  # decibel, float32 on a CPU
PROMPTS = ("a red circle", "a small yellow star at the top left on a blue background", "ring " * 40, "x")
CONFIG = EngineConfig(token_budget=100_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_z_image_checkpoint(tmp_path_factory.mktemp("models") / "z-image", seed=5)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    with Engine.load(str(folder), device="cpu", dtype="float32", config=CONFIG) as engine:
        yield engine


@cache
def reference(name: str, folder: Path) -> Any:
    pipeline = getattr(diffusers, name).from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def drawn_by_reference(folder: Path, params: GenerationParams, image: int) -> Image.Image:
    """Draw one image of a request by the pipeline of its kind of input."""
    assert params.seed is not None
    options: dict[str, Any] = {}
    name = "ZImagePipeline"
    if params.images:
        name, options = "ZImageImg2ImgPipeline", {"image": resized(params, params.images[0])}
        options["strength"] = 0.6 if params.strength is None else params.strength
    if params.mask is not None:
        name = "ZImageInpaintPipeline"
        options |= {"mask_image": resized(params, params.mask), "strength": params.strength or 1.0}
    drawn: Image.Image = reference(name, folder)(
        prompt=[params.prompt],  # it writes into the list
        negative_prompt=None if params.negative_prompt is None else [params.negative_prompt],
        width=params.width,
        height=params.height,
        num_inference_steps=params.num_inference_steps,
        guidance_scale=params.guidance_scale,
        max_sequence_length=params.max_sequence_length,
        generator=torch.Generator("cpu").manual_seed(params.seed + image),
        **options,
    ).images[0]
    return drawn


def resized(params: GenerationParams, image: InputImage | str) -> Image.Image:
    """Return an image in the size that is drawn: the reference draws in the image's own."""
    assert isinstance(image, InputImage)
    return as_image(image).resize((params.width or 0, params.height or 0), Image.Resampling.LANCZOS)


def photo(seed: int, width: int, height: int) -> InputImage:
    """Return an image of soft colors."""
    colors = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return input_image(Image.fromarray(colors).resize((width, height), Image.Resampling.BICUBIC))


def half_mask(width: int, height: int) -> InputImage:
    mask = Image.new("L", (width, height))
    mask.paste(255, (0, 0, width // 2, height))
    return input_image(mask, "L")


def requests(seed: int, steps: Sequence[int], **inputs: Sequence[Any]) -> list[GenerationParams]:
    """Return requests that differ in everything; `inputs` are used in turn."""
    draw = random.Random(seed)
    return [
        GenerationParams(
            prompt=draw.choice(PROMPTS),
            negative_prompt=draw.choice([None, "blue", "a long text " * 5]),
            width=16 * draw.randint(2, 8),
            height=16 * draw.randint(2, 8),
            num_inference_steps=num_steps,
            guidance_scale=draw.choice([0.0, 0.5, 1.0, 4.0]),
            seed=draw.randrange(2**40),
            num_images=1 + number % 2,
            max_sequence_length=draw.choice([40, 128, 512]),
            **{name: values[number % len(values)] for name, values in inputs.items()},
        )
        for number, num_steps in enumerate(steps)
    ]


def mixed(seed: int) -> list[GenerationParams]:
    """Return requests from nothing, from an image at several strengths, and within a mask."""
    images = [photo(1, 100, 60), photo(2, 64, 64)]
    masks = [half_mask(100, 60), half_mask(64, 64)]
    return [
        *requests(seed, (1, 4, 8)),
        *requests(seed + 1, (4, 7), image=images, strength=[0.5, None]),
        *requests(seed + 2, (5, 2), image=images, mask=masks, strength=[None, 0.5]),
    ]


@pytest.mark.parametrize("seed", [1, *(pytest.param(more, marks=pytest.mark.slow) for more in (2, 3))])
def test_a_mixed_batch_equals_diffusers(engine: Engine, folder: Path, seed: int) -> None:
    batch = mixed(seed)
    for params, result in zip(batch, engine.generate(batch), strict=True):
        for number, image in enumerate(result.images):
            assert psnr(image, drawn_by_reference(folder, params, number)) >= MIN_PSNR, params
    assert engine.stats.mean_requests_per_step > 1, "requests shared steps"


def test_images_differ_by_all_that_a_request_says(engine: Engine) -> None:
    base = GenerationParams(
        prompt="a red circle", negative_prompt="blue", width=64, height=48, num_inference_steps=2, seed=1,
        guidance_scale=2.0, max_sequence_length=128,
    )  # fmt: skip
    changes: list[dict[str, Any]] = [
        {"prompt": "a blue star"},
        {"negative_prompt": "red"},
        {"guidance_scale": 0.0},
        {"guidance_scale": 0.9},
        {"seed": 2},
        {"num_inference_steps": 3},
    ]
    first, *others = engine.generate([base, *(replace(base, **change) for change in changes)])
    distances = [psnr(first.images[0], other.images[0]) for other in others]
    assert max(distances) < 45, list(zip(changes, distances, strict=True))


def test_a_request_in_a_batch_equals_the_request_alone(engine: Engine) -> None:
    batch = mixed(6)
    together = engine.generate(batch)
    for params, shared in zip(batch, together, strict=True):
        alone = engine.generate(params)
        assert min(map(psnr, shared.images, alone.images)) >= MIN_PSNR


@pytest.mark.parametrize("kind", [Quantization.NONE, pytest.param(Quantization.INT8, marks=pytest.mark.slow)])
def test_in_deterministic_mode_company_changes_no_bit(folder: Path, kind: Quantization) -> None:
    config = EngineConfig(deterministic=True, token_budget=100_000, num_threads=2)
    with Engine.load(str(folder), device="cpu", dtype="float32", config=config, quantization=kind) as strict:
        batch = mixed(3)[1::2]
        together = [[image.tobytes() for image in result.images] for result in strict.generate(batch)]
        alone = [[image.tobytes() for image in strict.generate(params).images] for params in batch]
    assert together == alone


@pytest.mark.parametrize(
    ("kind", "least"), [(Quantization.INT8, 30), (Quantization.FP8, 25), (Quantization.INT4, 12)]
)
def test_weights_in_few_bits_draw_about_the_same(
    engine: Engine, folder: Path, kind: Quantization, least: float
) -> None:
    batch = [replace(params, num_inference_steps=2, num_images=1) for params in requests(4, (2, 2))]
    exact = engine.generate(batch)
    with Engine.load(str(folder), device="cpu", dtype="float32", quantization=kind) as few_bits:
        found = few_bits.generate(batch)
    distances = [psnr(a.images[0], b.images[0]) for a, b in zip(exact, found, strict=True)]
    assert least < min(distances) < 80


def test_half_precision_stays_close_to_float32(engine: Engine, folder: Path) -> None:
    batch = mixed(2)[1::2]
    with Engine.load(str(folder), device="cpu", dtype="bfloat16") as rounded:
        found = rounded.generate(batch)
    pairs = zip(batch, engine.generate(batch), found, strict=True)
    # Beside an image noise is drawn in the model's dtype, as diffusers does: other numbers in half precision.
    distances = [psnr(a.images[0], b.images[0]) for params, a, b in pairs if not params.images]
    assert min(distances) > 20


def test_prompts_that_are_too_long_are_cut_with_a_warning(engine: Engine, folder: Path) -> None:
    params = requests(1, (1,))[0]
    params = replace(params, prompt="ring " * 40, max_sequence_length=40, num_images=1)
    result = engine.generate(params)
    assert "the model reads 40" in result.warnings[0]
    assert psnr(result.images[0], drawn_by_reference(folder, params, 0)) >= MIN_PSNR


def test_on_a_gpu_weights_in_float32_run_in_bf16(folder: Path) -> None:
    with pretend_cuda(), Engine.load(str(folder), device="cuda") as engine:
        assert engine.pipeline.dtype == torch.bfloat16
