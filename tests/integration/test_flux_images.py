"""FLUX.1 with images generates what diffusers' pipelines do (INV-2), in any company (INV-1)."""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from PIL import Image

from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine.model_runner import image_generators
from diffuserve.media.input_image import as_image
from diffuserve.models.pipelines.base import DenoiseInput, packed
from diffuserve.testing.checkpoints import FluxKind, write_flux_checkpoint
from support.images import psnr
from support.photos import photo, rectangle

ROUNDING_PSNR = 60.0  # one of fifteen values is off by one
MIN_PSNR = 50.0  # decibel, float32 on a CPU
PROMPTS = ("a red circle", "make the star blue", "ring " * 20)

Folder = Callable[[FluxKind], Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Checkpoints by kind; Kontext's has the weights of `dev`."""
    return cache(lambda kind: write_flux_checkpoint(tmp_path_factory.mktemp(kind), kind=kind, seed=5))


@pytest.fixture(scope="module")
def engine(folder: Folder) -> Iterator[Callable[[FluxKind], Engine]]:
    engines: dict[FluxKind, Engine] = {}

    def load(kind: FluxKind) -> Engine:
        if kind not in engines:
            config = EngineConfig(token_budget=100_000)
            engines[kind] = Engine.load(str(folder(kind)), device="cpu", dtype="float32", config=config)
        return engines[kind]

    yield load
    for loaded in engines.values():
        loaded.close()


@cache
def reference(name: str, folder: Path) -> Any:
    pipeline = getattr(diffusers, name).from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def draw_by_call(pipeline: Any, params: GenerationParams, options: dict[str, Any]) -> list[Image.Image]:
    """Draw each image by a call of its own."""
    assert params.seed is not None
    return [
        pipeline(
            prompt=params.prompt,
            width=params.width,
            height=params.height,
            num_inference_steps=params.num_inference_steps,
            guidance_scale=params.guidance_scale,
            max_sequence_length=params.max_sequence_length,
            generator=torch.Generator("cpu").manual_seed(params.seed + i),
            **options,
        ).images[0]
        for i in range(params.num_images)
    ]


def edited_by_reference(folder: Path, params: GenerationParams) -> list[Image.Image]:
    """Draw with the pipeline of the request's kind of input."""
    image, *others = params.images or (None,)
    assert not others
    kind = json.loads((folder / "model_index.json").read_text())["_class_name"]
    options: dict[str, Any] = {}
    if isinstance(image, InputImage):
        options["image"] = as_image(image)
    if isinstance(params.mask, InputImage):
        options["mask_image"] = as_image(params.mask)
    if params.strength is not None:
        options["strength"] = params.strength
    if kind == "FluxKontextPipeline":
        options |= {"max_area": (params.width or 0) * (params.height or 0), "_auto_resize": False}
    elif kind == "FluxPipeline" and image is not None:
        kind = "FluxImg2ImgPipeline" if params.mask is None else "FluxInpaintPipeline"
    return draw_by_call(reference(kind, folder), params, options)


def requests(seed: int, steps: Sequence[int], **inputs: Sequence[Any]) -> list[GenerationParams]:
    """Return requests that differ in everything; `inputs` are used in turn."""
    draw = random.Random(seed)
    return [
        GenerationParams(
            prompt=draw.choice(PROMPTS),
            width=16 * draw.randint(2, 8),
            height=16 * draw.randint(2, 8),
            num_inference_steps=num_steps,
            guidance_scale=draw.choice([1.0, 3.5, 30.0]),
            seed=draw.randrange(2**40),
            num_images=1 + number % 3,
            max_sequence_length=draw.choice([8, 32]),
            **{name: values[number % len(values)] for name, values in inputs.items()},
        )
        for number, num_steps in enumerate(steps)
    ]


def starts(seed: int) -> list[GenerationParams]:
    """Return requests that begin with an image, at several strengths, some within a mask."""
    return [
        *requests(seed, (4, 1, 7, 8), image=[photo(1, 100, 60), photo(2, 64, 64)], strength=[0.5, 1.0, 0.6]),
        *requests(
            seed + 1,
            (5, 2, 4),
            image=[photo(3, 96, 96), photo(4, 48, 80)],
            mask=[rectangle(96, 96, 20, 30, 70, 61), rectangle(30, 50, 0, 0, 17, 50)],
            strength=[1.0, 0.5],
        ),
        *requests(seed + 2, (3,)),
    ]


def fills(seed: int) -> list[GenerationParams]:
    masks = [rectangle(96, 96, 20, 30, 70, 61), rectangle(30, 50, 0, 0, 17, 50)]
    images = [photo(3, 96, 96), photo(4, 48, 80)]
    return requests(seed, (4, 1, 8, 3), image=images, mask=masks, strength=[1.0, 0.5])


def edits(seed: int) -> list[GenerationParams]:
    """Return requests with a reference, and some without."""
    return requests(seed, (4, 1, 8, 2, 3), image=[photo(5, 100, 60), None, photo(6, 32, 96)])


BATCHES: dict[FluxKind, Callable[[int], list[GenerationParams]]] = {
    "dev": starts,
    "fill": fills,
    "kontext": edits,
}
KINDS = tuple(BATCHES)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mixed_batch_equals_diffusers(
    kind: FluxKind, engine: Callable[[FluxKind], Engine], folder: Folder
) -> None:
    batch = BATCHES[kind](1)
    for params, result in zip(batch, engine(kind).generate(batch), strict=True):
        theirs = edited_by_reference(folder(kind), params)
        assert len(result.images) == params.num_images
        assert min(map(psnr, result.images, theirs)) >= MIN_PSNR, params
    assert engine(kind).stats.mean_requests_per_step > 1, "requests shared steps"


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_in_a_batch_equals_the_request_alone(
    kind: FluxKind, engine: Callable[[FluxKind], Engine]
) -> None:
    batch = BATCHES[kind](6)
    together = engine(kind).generate(batch)
    for params, shared in zip(batch, together, strict=True):
        alone = engine(kind).generate(params)
        assert min(map(psnr, shared.images, alone.images)) >= MIN_PSNR


@pytest.mark.parametrize("kind", KINDS)
def test_in_deterministic_mode_company_changes_no_bit(kind: FluxKind, folder: Folder) -> None:
    config = EngineConfig(deterministic=True, token_budget=100_000, num_threads=2)
    with Engine.load(str(folder(kind)), device="cpu", dtype="float32", config=config) as strict:
        batch = BATCHES[kind](3)[:4]
        together = [[image.tobytes() for image in result.images] for result in strict.generate(batch)]
        alone = [[image.tobytes() for image in strict.generate(params).images] for params in batch]
    assert together == alone


def test_kontext_without_a_reference_is_plain_flux(engine: Callable[[FluxKind], Engine]) -> None:
    """Two engines have their weights at addresses of other alignment: a sum may round otherwise."""
    batch = [replace(params, image=None) for params in edits(8)[:3]]
    for params in batch:
        edited, plain = (engine(kind).generate(params).images for kind in ("kontext", "dev"))
        assert min(map(psnr, edited, plain)) >= ROUNDING_PSNR


def test_several_references_each_change_the_image(engine: Callable[[FluxKind], Engine]) -> None:
    first, second = photo(5, 64, 48), photo(6, 32, 64)
    chosen = [None, first, (first, second), (second, first), (first, first)]
    images = [
        engine("kontext")
        .generate(
            GenerationParams(prompt="x", image=image, width=64, height=64, num_inference_steps=2, seed=1)
        )
        .images[0]
        for image in chosen
    ]
    assert len({image.tobytes() for image in images}) == len(images)


def test_a_reference_of_nan_spoils_no_neighbor(engine: Callable[[FluxKind], Engine]) -> None:
    pipeline = packed(engine("kontext").pipeline)
    wanted = [
        pipeline.spec.resolve(params, seed=0)
        for params in requests(2, (2, 2, 2), image=[photo(5, 64, 64), photo(6, 64, 64), None])
    ]
    inputs = []
    for params, encoded in zip(wanted, pipeline.encode(wanted), strict=True):
        initial = pipeline.init_latents(params, encoded, image_generators(params))
        inputs.append(DenoiseInput(params, encoded, initial.latents, 900.0))
    poisoned: Any = inputs[1].conditioning
    poisoned = replace(poisoned, references=poisoned.references * torch.nan)
    expected = pipeline.denoise(inputs)
    found = pipeline.denoise([inputs[0], replace(inputs[1], conditioning=poisoned), inputs[2]])
    assert [bool(prediction.isfinite().all()) for prediction in found] == [True, False, True]
    assert all(torch.allclose(found[i], expected[i], atol=1e-5) for i in (0, 2))


def test_what_a_mask_keeps_stays_and_the_rest_changes(engine: Callable[[FluxKind], Engine]) -> None:
    """Compare in latents, since the random decoder smears: the kept ones are those of the image itself."""
    pipeline = packed(engine("dev").pipeline)
    mask = rectangle(64, 64, 0, 0, 32, 64)
    params = pipeline.spec.resolve(
        GenerationParams(prompt="x", image=photo(3, 64, 64), mask=mask, num_inference_steps=2), seed=1
    )
    [encoded] = pipeline.encode([params])
    initial = pipeline.init_latents(params, encoded, image_generators(params))
    clean, _, kept_out = initial.guides
    request = DenoiseInput(params, encoded, initial.latents, 1_000.0, guides=initial.guides)
    finished = pipeline.restore(initial.latents, request, pipeline.schedule(params).at(1))
    keeps = kept_out.expand_as(clean) == 0
    assert 0.4 < float(keeps.float().mean()) < 0.6
    assert torch.equal(finished[keeps], clean[keeps])
    assert torch.equal(finished[~keeps], initial.latents[~keeps])


class HeunForFlux(diffusers.FlowMatchHeunDiscreteScheduler):  # type: ignore[misc]
    """Heun's scheduler as diffusers' `FluxPipeline` calls one: it leaves the levels to the scheduler."""

    def set_timesteps(self, device: Any = None, sigmas: Any = (), mu: Any = None) -> None:
        super().set_timesteps(len(sigmas), device)


def test_heun_as_a_sampler_equals_diffusers(engine: Callable[[FluxKind], Engine], folder: Folder) -> None:
    batch = [replace(params, sampler="flow_match_heun") for params in requests(7, (1, 2, 4))]
    theirs = diffusers.FluxPipeline.from_pretrained(
        folder("dev"), dtype=torch.float32, local_files_only=True, trust_remote_code=False
    )
    theirs.scheduler = HeunForFlux(shift=theirs.scheduler.config.shift)
    theirs.set_progress_bar_config(disable=True)
    for params, result in zip(batch, engine("dev").generate(batch), strict=True):
        expected = draw_by_call(theirs, params, {})
        assert min(map(psnr, result.images, expected)) >= MIN_PSNR, params


def test_heun_begins_from_an_image_with_a_whole_step(engine: Callable[[FluxKind], Engine]) -> None:
    spec, pipeline = engine("dev").spec, engine("dev").pipeline
    asked = GenerationParams(prompt="x", image=photo(3, 64, 64), strength=0.5, num_inference_steps=4, seed=1)
    heun, euler = (
        spec.resolve(replace(asked, sampler=name), seed=1) for name in ("flow_match_heun", "flow_match_euler")
    )
    assert [pipeline.schedule(params).num_steps for params in (heun, euler)] == [3, 2]
    assert [spec.num_steps(params) for params in (heun, euler)] == [3, 2]
    images = [result.images[0] for result in engine("dev").generate([heun, euler])]
    assert images[0].tobytes() != images[1].tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_requests_with_images_have_previews_and_can_be_aborted(
    kind: FluxKind, engine: Callable[[FluxKind], Engine]
) -> None:
    chosen, aborted = (
        engine(kind).add(replace(params, num_inference_steps=4), preview=True)
        for params in BATCHES[kind](4)[:2]
    )
    previews = []
    while outputs := engine(kind).step():
        previews += [o.preview for o in outputs if o.request_id == chosen and o.preview is not None]
        if not any(output.finished for output in outputs):
            engine(kind).abort(aborted)
        assert not any(output.error and output.request_id == chosen for output in outputs)
    assert len(previews) >= 2


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_stays_close_to_float32(
    kind: FluxKind, engine: Callable[[FluxKind], Engine], folder: Folder
) -> None:
    batch = BATCHES[kind](2)[:6]
    exact = engine(kind).generate(batch)
    with Engine.load(str(folder(kind)), device="cpu", dtype="bfloat16") as rounded:
        found = rounded.generate(batch)
    pairs = zip(exact, found, strict=True)
    assert min(psnr(ours.images[0], other.images[0]) for ours, other in pairs) > 15
