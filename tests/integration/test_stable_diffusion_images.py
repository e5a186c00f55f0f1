"""Requests with images get what diffusers' own image-to-image and inpainting pipelines draw (INV-2)."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch import Tensor

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.requests.samplers import DIFFUSION_SAMPLERS
from diffuserve.engine.engine import Engine
from diffuserve.engine.model_runner import ModelRunner
from diffuserve.engine.requests.admission import new_state
from diffuserve.engine.requests.request_state import DEFAULT_OPTIONS
from diffuserve.media.input_image import as_image, input_image
from diffuserve.models.pipelines.base import Conditioning, packed
from diffuserve.testing.unet_checkpoints import Kind, write_unet_checkpoint
from support.images import psnr
from support.unet_reference import draw_with, load, load_reference

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

MIN_PSNR = 50.0  # decibel, float32 on a CPU
SAMPLERS = (None, *DIFFUSION_SAMPLERS)

Checkpoints = Callable[..., Path]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """Return a function that writes each checkpoint once."""

    @cache
    def write(kind: Kind, **unet: Any) -> Path:
        return write_unet_checkpoint(tmp_path_factory.mktemp("model") / kind, kind=kind, seed=5, **unet)

    return write


def photo(width: int, height: int, seed: int = 1) -> InputImage:
    """Return an image of smooth random colors."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return input_image(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def mask(width: int, height: int) -> InputImage:
    """Return a mask whose middle is to change."""
    image = Image.new("L", (width, height))
    image.paste(255, (width // 4, height // 4, width * 3 // 4, height * 3 // 4))
    return input_image(image, "L")


@cache
def reference_of(folder: Path, pipeline: str) -> Any:
    return load_reference(folder, pipeline)


def draw_with_reference(folder: Path, kind: Kind, params: GenerationParams) -> list[Image.Image]:
    return draw_with(reference_of(folder, pipeline_of(kind, params)), params, **images_of(params))


def pipeline_of(kind: Kind, params: GenerationParams) -> str:
    task = "Inpaint" if params.mask else "Img2Img" if params.images else ""
    return f"StableDiffusion{'XL' if kind.endswith('xl') else ''}{task}Pipeline"


def images_of(params: GenerationParams) -> dict[str, Any]:
    """Return the reference's arguments; its image-to-image pipelines draw in the size of the image."""
    assert params.width is not None
    assert params.height is not None
    size: dict[str, Any] = {"width": params.width, "height": params.height}
    if not params.images:
        return size
    assert isinstance(params.image, InputImage)
    image = as_image(params.image)
    if params.mask is None:
        resized = image.resize((params.width, params.height), Image.Resampling.LANCZOS)
        return {"image": resized, "strength": params.strength}
    assert isinstance(params.mask, InputImage)
    return size | {"image": image, "mask_image": as_image(params.mask), "strength": params.strength}


def make_batch(tasks: Sequence[str], seed: int, size: int = 10) -> list[GenerationParams]:
    """Requests that differ in everything that may differ, of each task some."""
    draw = random.Random(seed)
    requests = []
    for index in range(size):
        task = tasks[index % len(tasks)]
        width, height = 8 * draw.randint(4, 9), 8 * draw.randint(4, 9)
        source = (draw.randint(20, 120), draw.randint(20, 120))
        is_text = task == "text"
        requests.append(
            GenerationParams(
                prompt=draw.choice(["a red circle", "a star"]),
                negative_prompt=draw.choice([None, "", "blurry"]),
                width=width,
                height=height,
                num_inference_steps=draw.randint(2, 5),
                guidance_scale=draw.choice([1.0, 5.0]),
                seed=draw.randrange(2**40),
                num_images=draw.choice([1, 1, 2, 3]),
                sampler=draw.choice(SAMPLERS),
                image=None if is_text else photo(*source, seed=index),
                mask=mask(*source) if task == "fill" else None,
                strength=None if is_text else draw.choice([0.5, 0.7, 1.0]),
            )
        )
    return requests


def assert_parity(folder: Path, kind: Kind, batch: list[GenerationParams]) -> None:
    """Compare each image of a batch with the reference's."""
    with load(folder) as engine:
        results = engine.generate(batch)
        assert engine.stats.mean_requests_per_step > 1, "requests shared steps"
    for params, result in zip(batch, results, strict=True):
        for ours, theirs in zip(result.images, draw_with_reference(folder, kind, params), strict=True):
            assert psnr(ours, theirs) >= MIN_PSNR, params


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        *(("xl", 5), ("sd", 5)),
        *(pytest.param(kind, 9, marks=pytest.mark.slow) for kind in ("xl", "sd")),
    ],
)
def test_images_beside_texts_equal_diffusers(kind: Kind, size: int, checkpoint: Checkpoints) -> None:
    assert_parity(checkpoint(kind), kind, make_batch(("start", "fill", "text"), seed=1, size=size))


@pytest.mark.parametrize("kind", ["xl", "sd"])
def test_models_that_read_the_mask_equal_diffusers(kind: Kind, checkpoint: Checkpoints) -> None:
    assert_parity(checkpoint(kind, in_channels=9), kind, make_batch(("fill",), seed=2, size=4))


def test_a_refiner_equals_diffusers(checkpoint: Checkpoints) -> None:
    assert_parity(checkpoint("refiner-xl"), "refiner-xl", make_batch(("start", "fill"), seed=3, size=4))


@pytest.mark.parametrize("kind", ["xl", pytest.param("sd", marks=pytest.mark.slow)])
def test_every_sampler_fills_in_as_diffusers_does(kind: Kind, checkpoint: Checkpoints) -> None:
    """Requests of one size, so that all of them share their forward passes."""
    batch = [
        GenerationParams(
            prompt="a red circle",
            width=64,
            height=64,
            num_inference_steps=2 + index % 3,
            guidance_scale=5.0,
            seed=index,
            sampler=sampler,
            image=photo(64, 64),
            mask=mask(64, 64),
            strength=(0.5, 1.0)[index // len(SAMPLERS)],
        )
        for index, sampler in enumerate((*SAMPLERS, "euler_ancestral", "dpmpp_2m", "lcm", "ddim"))
    ]
    assert_parity(checkpoint(kind), kind, batch)


def test_distilled_models_take_images_as_diffusers_has_it(checkpoint: Checkpoints) -> None:
    plain = make_batch(("start", "fill"), seed=4, size=4)
    batch = [replace(params, negative_prompt=None, sampler=None) for params in plain]
    assert_parity(checkpoint("lcm-xl"), "lcm-xl", batch)


EDIT = GenerationParams(
    prompt="a star",
    image=photo(64, 64),
    mask=mask(64, 64),
    num_inference_steps=4,
    guidance_scale=5.0,
    seed=1,
    num_images=2,
)


def test_where_a_mask_is_black_the_prompt_changes_nothing(checkpoint: Checkpoints) -> None:
    black, white = (input_image(Image.new("L", (64, 64), level), "L") for level in (0, 255))
    requests = [replace(EDIT, mask=each, prompt=text) for each in (black, white) for text in ("a", "star")]
    with load(checkpoint("xl")) as engine:
        kept, also_kept, drawn, drawn_otherwise = (each.images[0] for each in engine.generate(requests))
    assert psnr(kept, also_kept) >= MIN_PSNR
    assert psnr(drawn, drawn_otherwise) < 40


@pytest.mark.parametrize(("kind", "channels"), [("xl", 4), ("sd", 9)])
def test_edits_in_half_precision_are_nearly_the_same(
    kind: Kind, channels: int, checkpoint: Checkpoints
) -> None:
    folder = checkpoint(kind, in_channels=channels)
    requests = [replace(EDIT, strength=strength) for strength in (0.5, 1.0)]
    with (
        load(folder) as precise,
        Engine.load(str(folder), device="cpu", dtype="bfloat16") as rough,
    ):
        pairs = zip(precise.generate(requests), rough.generate(requests), strict=True)
        assert all(psnr(ours.images[1], theirs.images[1]) > 25 for ours, theirs in pairs)


def test_edits_have_previews_and_can_be_canceled(checkpoint: Checkpoints) -> None:
    with load(checkpoint("xl")) as engine:
        kept, canceled = engine.add(EDIT, preview=True), engine.add(EDIT)
        first = engine.step()
        assert engine.abort(canceled)
        later = [output for _ in range(EDIT.num_inference_steps or 0) for output in engine.step()]
    assert any(output.preview for output in first if output.request_id == kept)
    finished = {output.request_id: output for output in later if output.finished}
    assert finished[kept].result is not None
    assert finished[canceled].result is None


def test_equal_images_are_encoded_once(checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[tuple[int, ...]] = []
    with load(checkpoint("xl")) as engine:
        vae: Any = engine.pipeline.vae  # type: ignore[attr-defined]
        encode = vae.encode

        def count(pixels: Tensor) -> Any:
            encoded.append(tuple(pixels.shape))
            return encode(pixels)

        monkeypatch.setattr(vae, "encode", count)
        others = ({"seed": 5}, {"prompt": "a ring"}, {"width": 96})
        engine.generate([EDIT, *(replace(EDIT, **other) for other in others)])
        engine.generate(GenerationParams(prompt="a star", num_inference_steps=1, seed=1))
    assert encoded == [(1, 3, 64, 64), (1, 3, 96, 96)]


def test_a_seed_decides_alone_among_neighbors(checkpoint: Checkpoints) -> None:
    second = replace(EDIT, seed=2, num_images=1)
    neighbor = GenerationParams(prompt="a ring", num_inference_steps=3, guidance_scale=5.0, seed=9)
    with load(checkpoint("xl")) as engine:
        both, _, alone = engine.generate([EDIT, neighbor, second])
    assert psnr(both.images[1], alone.images[0]) >= MIN_PSNR


@pytest.mark.parametrize("kind", ["xl", "sd"])
def test_edits_are_bit_equal_in_deterministic_mode(kind: Kind, checkpoint: Checkpoints) -> None:
    requests = make_batch(("start", "fill", "text"), seed=7, size=4)
    with load(checkpoint(kind), deterministic=True, num_threads=2) as engine:
        together = [image.tobytes() for result in engine.generate(requests) for image in result.images]
        alone = [image.tobytes() for each in requests for image in engine.generate([each])[0].images]
    assert together == alone


def test_a_torn_image_is_refused(checkpoint: Checkpoints) -> None:
    torn = replace(EDIT, image=replace(photo(64, 64), pixels=b"\0" * 7))
    with (
        load(checkpoint("xl")) as engine,
        pytest.raises(InvalidParams, match=r"image=.*needs 12,288 bytes of pixels, not 7"),
    ):
        engine.add(torn)


def test_an_image_that_cannot_be_encoded_fails_alone(checkpoint: Checkpoints) -> None:
    torn = replace(EDIT, image=InputImage("torn", 64, 64, "RGB", b"\0" * 7))
    with load(checkpoint("xl")) as engine:
        requests = [engine.spec.resolve(params, seed=1) for params in (EDIT, torn, replace(EDIT, mask=None))]
        states = [new_state(engine.pipeline, params, DEFAULT_OPTIONS, None) for params in requests]
        before, failed, after = ModelRunner(packed(engine.pipeline)).encode(states)
    assert isinstance(failed, ValueError)
    assert isinstance(before, Conditioning)
    assert isinstance(after, Conditioning)
    assert before.num_bytes > after.num_bytes > 0
