"""FLUX.2 generates what diffusers' pipelines do (INV-2), in any company (INV-1)."""

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

from diffuserve.domain.models.quantization import Quantization
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine.model_runner import image_generators
from diffuserve.media.input_image import as_image, input_image
from diffuserve.models.pipelines.base import DenoiseInput, packed
from diffuserve.models.pipelines.input_tensors import cropped_tensor
from diffuserve.models.quantized_folder import write_quantized
from diffuserve.testing.flux2_checkpoints import Flux2Kind, write_flux2_checkpoint
from support.images import psnr

MIN_PSNR = 50.0  # decibel, float32 on a CPU
KINDS: tuple[Flux2Kind, ...] = ("klein", "base", "dev")
SLOW = pytest.mark.slow
BASE_FIRST = ["base", *(pytest.param(kind, marks=SLOW) for kind in ("klein", "dev"))]
PROMPTS = ("a red circle", "make the star blue", "ring " * 20)

Load = Callable[[Flux2Kind], Engine]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Flux2Kind], Path]:
    return cache(lambda kind: write_flux2_checkpoint(tmp_path_factory.mktemp(kind), kind=kind, seed=5))


@pytest.fixture(scope="module")
def engine(folder: Callable[[Flux2Kind], Path]) -> Iterator[Load]:
    engines: dict[Flux2Kind, Engine] = {}

    def load(kind: Flux2Kind) -> Engine:
        if kind not in engines:
            config = EngineConfig(token_budget=100_000)
            engines[kind] = Engine.load(str(folder(kind)), device="cpu", dtype="float32", config=config)
        return engines[kind]

    yield load
    for loaded in engines.values():
        loaded.close()


def photo(seed: int, width: int, height: int) -> InputImage:
    """Return an image of soft colors."""
    generator = torch.Generator().manual_seed(seed)
    colors = torch.randint(256, (4, 5, 3), generator=generator, dtype=torch.uint8)
    return input_image(Image.fromarray(colors.numpy()).resize((width, height), Image.Resampling.BICUBIC))


def rectangle(width: int, height: int, left: int, top: int, right: int, bottom: int) -> InputImage:
    """Return a mask that is white within a rectangle."""
    mask = Image.new("L", (width, height))
    mask.paste(255, (left, top, right, bottom))
    return input_image(mask, "L")


def mixed(kind: Flux2Kind, seed: int, count: int, **inputs: Sequence[Any]) -> list[GenerationParams]:
    """Return requests that differ in everything; `inputs` are used in turn."""
    draw, requests = random.Random(seed), []
    for number in range(count):
        values: dict[str, Any] = {
            "prompt": draw.choice(PROMPTS),
            "width": 16 * draw.randint(2, 6),
            "height": 16 * draw.randint(2, 6),
            "num_inference_steps": 1 + 2 * number % 5,
            "guidance_scale": None if kind == "klein" else draw.choice([1.0, 4.0, 7.5]),
            "seed": draw.randrange(2**40),
            "num_images": 1 + number % 2,
            "max_sequence_length": draw.choice([48, 80]),
        }
        values |= {name: choices[number % len(choices)] for name, choices in inputs.items()}
        requests.append(GenerationParams(**values))
    return requests


def edits(kind: Flux2Kind, seed: int = 1) -> list[GenerationParams]:
    """Return requests with no reference, with one, and with two of other sizes."""
    references = [None, photo(1, 100, 70), (photo(2, 64, 90), photo(3, 80, 65))]
    return mixed(kind, seed, 6, image=references)


def inpaintings(kind: Flux2Kind, seed: int = 2) -> list[GenerationParams]:
    """Return requests with a mask, whose size is that of its image, some with further references."""
    first, others = photo(4, 100, 70), (photo(5, 64, 64), photo(6, 64, 64))
    masks = [rectangle(100, 70, 20, 30, 77, 61), rectangle(100, 70, 0, 0, 44, 70)]
    masked = mixed(
        kind,
        seed,
        3,
        image=[first, (first, others[0]), (first, *others)],
        mask=masks,
        strength=[0.5, 1.0, 0.8],
        width=[96],
        height=[64],
        num_inference_steps=[4, 2, 5],
    )
    return [*masked, *mixed(kind, seed + 1, 1)]


@cache
def reference(name: str, folder: Path) -> Any:
    pipeline = getattr(diffusers, name).from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def drawn_by_reference(kind: Flux2Kind, folder: Path, params: GenerationParams) -> list[Image.Image]:
    """Draw each image by a call of its own."""
    images = [as_image(image) for image in params.images if isinstance(image, InputImage)]
    name, options = "Flux2Pipeline" if kind == "dev" else "Flux2KleinPipeline", dict[str, Any]()
    if isinstance(params.mask, InputImage):
        name = "Flux2KleinInpaintPipeline"
        options = {"image": images[0], "mask_image": as_image(params.mask), "strength": params.strength}
        options |= {"image_reference": images[1:]} if images[1:] else {}
    elif images:
        options = {"image": images}
    assert params.seed is not None
    return [
        reference(name, folder)(
            prompt=params.prompt,
            width=params.width,
            height=params.height,
            num_inference_steps=params.num_inference_steps,
            guidance_scale=1.0 if kind == "klein" else params.guidance_scale,
            max_sequence_length=params.max_sequence_length,
            generator=torch.Generator("cpu").manual_seed(params.seed + number),
            **options,
        ).images[0]
        for number in range(params.num_images)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_mixed_batch_equals_diffusers(
    kind: Flux2Kind, engine: Load, folder: Callable[[Flux2Kind], Path]
) -> None:
    batch = [*edits(kind), *inpaintings(kind)] if kind == "base" else edits(kind)[:3]
    for params, result in zip(batch, engine(kind).generate(batch), strict=True):
        theirs = drawn_by_reference(kind, folder(kind), params)
        assert len(result.images) == params.num_images
        assert min(map(psnr, result.images, theirs)) >= MIN_PSNR, params
    assert engine(kind).stats.mean_requests_per_step > 1, "requests shared steps"


def test_a_large_reference_is_shrunk_and_cut_as_by_diffusers(
    engine: Load, folder: Callable[[Flux2Kind], Path]
) -> None:
    image, most = photo(7, 1500, 997), 1024 * 1024
    width, height = engine("klein").spec.reference_size(image)
    theirs = reference("Flux2KleinPipeline", folder("klein")).image_processor
    small = theirs._resize_to_target_area(as_image(image), most)
    expected = theirs.preprocess(small, height=height, width=width, resize_mode="crop")
    assert torch.equal(cropped_tensor(image, width, height, most), expected)


@pytest.mark.slow
def test_a_distilled_model_fills_in_what_diffusers_does(
    engine: Load, folder: Callable[[Flux2Kind], Path]
) -> None:
    batch = inpaintings("klein")
    for params, result in zip(batch, engine("klein").generate(batch), strict=True):
        theirs = drawn_by_reference("klein", folder("klein"), params)
        assert min(map(psnr, result.images, theirs)) >= MIN_PSNR, params


@pytest.mark.parametrize("kind", BASE_FIRST)
def test_a_request_in_a_batch_equals_the_request_alone(kind: Flux2Kind, engine: Load) -> None:
    batch = edits(kind, 6)[:3]
    together = engine(kind).generate(batch)
    for params, shared in zip(batch, together, strict=True):
        alone = engine(kind).generate(params)
        assert min(map(psnr, shared.images, alone.images)) >= MIN_PSNR


@pytest.mark.parametrize("kind", BASE_FIRST)
def test_in_deterministic_mode_company_changes_no_bit(
    kind: Flux2Kind, folder: Callable[[Flux2Kind], Path]
) -> None:
    config = EngineConfig(deterministic=True, token_budget=100_000, num_threads=2)
    batch = [*edits(kind, 3)[:2], *(inpaintings(kind, 4)[:1] if kind == "base" else ())]
    with Engine.load(str(folder(kind)), device="cpu", dtype="float32", config=config) as strict:
        together = [[image.tobytes() for image in result.images] for result in strict.generate(batch)]
        alone = [[image.tobytes() for image in strict.generate(params).images] for params in batch]
    assert together == alone


@pytest.mark.parametrize("kind", BASE_FIRST)
def test_everything_that_a_request_says_changes_the_image(kind: Flux2Kind, engine: Load) -> None:
    first, second = photo(5, 64, 80), photo(6, 80, 64)
    plain = GenerationParams(prompt="x", width=64, height=64, num_inference_steps=2, seed=1)
    chosen = [
        plain,
        replace(plain, prompt="y"),
        replace(plain, max_sequence_length=48),
        *(replace(plain, image=image) for image in (first, (first, second), (second, first), (first, first))),
    ]
    if kind != "klein":
        chosen.append(replace(plain, guidance_scale=7.5))
    images = [result.images[0].tobytes() for result in engine(kind).generate(chosen)]
    assert len(set(images)) == len(images)


def test_a_reference_of_nan_spoils_no_neighbor(engine: Load) -> None:
    pipeline = packed(engine("base").pipeline)
    wanted = [pipeline.spec.resolve(params, seed=0) for params in edits("base", 2)[:3]]
    inputs = []
    for params, encoded in zip(wanted, pipeline.encode(wanted), strict=True):
        initial = pipeline.init_latents(params, encoded, image_generators(params))
        inputs.append(DenoiseInput(params, encoded, initial.latents, 900.0))
    poisoned: Any = inputs[1].conditioning
    poisoned = replace(poisoned, references=poisoned.references * torch.nan)
    expected = pipeline.denoise(inputs)
    found = pipeline.denoise([inputs[0], replace(inputs[1], conditioning=poisoned), inputs[2]])
    assert [bool(prediction.isfinite().all()) for prediction in found] == [True, False, True]
    assert all(torch.allclose(found[i], expected[i], atol=1e-4) for i in (0, 2))


@pytest.mark.slow
def test_half_precision_stays_close_to_float32(engine: Load, folder: Callable[[Flux2Kind], Path]) -> None:
    batch = edits("klein", 2)[:3]
    exact = engine("klein").generate(batch)
    with Engine.load(str(folder("klein")), device="cpu", dtype="bfloat16") as rounded:
        found = rounded.generate(batch)
    pairs = zip(exact, found, strict=True)
    assert min(psnr(ours.images[0], other.images[0]) for ours, other in pairs) > 15


@pytest.mark.parametrize(
    ("kind", "decibels"),
    [
        (Quantization.INT8, 30.0),
        pytest.param(Quantization.FP8, 25.0, marks=SLOW),
        pytest.param(Quantization.INT4, 15.0, marks=SLOW),
    ],
)
def test_quantized_weights_draw_alike_from_their_own_folder_too(
    kind: Quantization, decibels: float, engine: Load, folder: Callable[[Flux2Kind], Path], tmp_path: Path
) -> None:
    params = edits("base", 7)[1]
    [exact] = engine("base").generate([params])
    write_quantized(str(folder("base")), tmp_path / "few", kind)
    drawn = []
    for path, wanted in ((folder("base"), kind), (tmp_path / "few", None)):
        with Engine.load(str(path), device="cpu", dtype="float32", quantization=wanted) as few:
            assert few.describe()["quantization"] == kind
            drawn.append(few.generate(params).images[0])
    assert drawn[0].tobytes() == drawn[1].tobytes()
    assert decibels < psnr(exact.images[0], drawn[0]) < 90


def test_previews_come_of_half_done_images(engine: Load) -> None:
    params = replace(edits("base", 4)[1], num_inference_steps=4, width=64, height=96)
    chosen = engine("base").add(params, preview=True)
    previews = []
    while outputs := engine("base").step():
        previews += [o.preview for o in outputs if o.request_id == chosen and o.preview is not None]
    assert {preview.width / preview.height for preview in previews} == {8 / 12}
    assert len({preview.tobytes() for preview in previews}) == len(previews) >= 2
