"""Qwen-Image generates what diffusers' pipelines do (INV-2), in any company (INV-1)."""

import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus
from PIL import Image

from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine.model_runner import image_generators
from diffuserve.media.input_image import as_image
from diffuserve.models.families.qwen_image import edit_text
from diffuserve.models.pipelines.base import DenoiseInput, packed
from diffuserve.testing.qwen_image_checkpoints import QwenImageKind, write_qwen_image_checkpoint
from support.images import psnr
from support.photos import photo, rectangle

PIXELS = 96 * 96  # of a reference
MIN_PSNR = 50.0  # decibel, float32 on a CPU
PROMPTS = ("a red circle", "make the star blue", "ring " * 20)

Folder = Callable[[QwenImageKind], Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Checkpoints by kind; those of editors scale references to fewer pixels than the real ones."""

    @cache
    def write(kind: QwenImageKind) -> Path:
        path = write_qwen_image_checkpoint(tmp_path_factory.mktemp(kind), kind=kind, seed=5)
        if kind != "image":
            (path / "diffuserve.json").write_text(json.dumps({"max_reference_pixels": PIXELS}))
        return path

    return write


@pytest.fixture(scope="module", autouse=True)
def _small_references() -> Iterator[None]:
    """Have diffusers scale references to as few pixels, and ours read an image alone in as few."""
    exact = pipeline_qwenimage_edit.calculate_dimensions
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edit_text, "_LARGE", PIXELS)
        patch.setattr(pipeline_qwenimage_edit_plus, "VAE_IMAGE_SIZE", PIXELS)
        patch.setattr(
            pipeline_qwenimage_edit, "calculate_dimensions", lambda _pixels, ratio: exact(PIXELS, ratio)
        )
        yield


@pytest.fixture(scope="module")
def engine(folder: Folder) -> Iterator[Callable[[QwenImageKind], Engine]]:
    engines: dict[QwenImageKind, Engine] = {}

    def load(kind: QwenImageKind) -> Engine:
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


def drawn_by_reference(folder: Path, params: GenerationParams) -> list[Image.Image]:
    """Draw each image by a call of the class for the request's kind of input."""
    assert params.seed is not None
    name = json.loads((folder / "model_index.json").read_text())["_class_name"]
    options: dict[str, Any] = {}
    if params.images:
        images = [as_image(image) for image in params.images if isinstance(image, InputImage)]
        options["image"] = images if "Plus" in name else images[0]
    if isinstance(params.mask, InputImage):
        options["mask_image"] = as_image(params.mask)
    if params.strength is not None:
        options["strength"] = params.strength
        name = "QwenImageImg2ImgPipeline" if params.mask is None else "QwenImageInpaintPipeline"
    return [
        reference(name, folder)(
            prompt=params.prompt,
            negative_prompt=" " if params.negative_prompt is None else params.negative_prompt,
            true_cfg_scale=params.guidance_scale,
            width=params.width,
            height=params.height,
            num_inference_steps=params.num_inference_steps,
            max_sequence_length=params.max_sequence_length,
            generator=torch.Generator("cpu").manual_seed(params.seed + i),
            **options,
        ).images[0]
        for i in range(params.num_images)
    ]


def requests(seed: int, steps: Sequence[int], **inputs: Sequence[Any]) -> list[GenerationParams]:
    """Return requests that differ in everything; `inputs` are used in turn."""
    draw = random.Random(seed)
    return [
        GenerationParams(
            prompt=draw.choice(PROMPTS),
            negative_prompt=draw.choice([None, "", "blue"]),
            width=16 * draw.randint(2, 8),
            height=16 * draw.randint(2, 8),
            num_inference_steps=num_steps,
            guidance_scale=draw.choice([1.0, 3.5, 7.0]),
            seed=draw.randrange(2**40),
            num_images=1 + number % 2,
            max_sequence_length=draw.choice([8, 32, 512]),
            **{name: values[number % len(values)] for name, values in inputs.items()},
        )
        for number, num_steps in enumerate(steps)
    ]


def starts(seed: int) -> list[GenerationParams]:
    """Return requests of prompts alone, and others that begin with an image, some within a mask."""
    images = [photo(1, 100, 60), photo(2, 64, 64)]
    masks = [rectangle(100, 60, 20, 30, 70, 55), rectangle(30, 30, 0, 0, 17, 30)]
    return [
        *requests(seed, (4, 2, 8)),
        *requests(seed + 1, (5, 2, 3), image=images, strength=[0.5, 1.0, 0.6]),
        *requests(seed + 2, (4, 3), image=images, mask=masks, strength=[1.0, 0.5]),
    ]


def edits(seed: int) -> list[GenerationParams]:
    """Return requests of one, two and three references."""
    images = [photo(5, 100, 60), photo(6, 40, 96), photo(7, 300, 280)]
    several = [images[0], (images[1], images[0]), (images[2], images[1], images[0])]
    return _uncut(requests(seed, (4, 2, 5, 3), image=several))


def single_edits(seed: int) -> list[GenerationParams]:
    return _uncut(requests(seed, (4, 2, 3), image=[photo(5, 100, 60), photo(6, 40, 96)]))


def _uncut(batch: Sequence[GenerationParams]) -> list[GenerationParams]:
    """Return requests whose prompts are read as a whole, as diffusers' editors do."""
    return [replace(params, max_sequence_length=512) for params in batch]


BATCHES: dict[QwenImageKind, Callable[[int], list[GenerationParams]]] = {
    "image": starts,
    "edit": single_edits,
    "edit-plus": edits,
    "edit-2511": edits,
}
SLOW = pytest.mark.slow
KINDS = ("image", "edit-2511", pytest.param("edit", marks=SLOW), pytest.param("edit-plus", marks=SLOW))


@pytest.mark.parametrize("kind", KINDS)
def test_a_mixed_batch_equals_diffusers(
    kind: QwenImageKind, engine: Callable[[QwenImageKind], Engine], folder: Folder
) -> None:
    batch = BATCHES[kind](1)
    for params, result in zip(batch, engine(kind).generate(batch), strict=True):
        theirs = drawn_by_reference(folder(kind), engine(kind).spec.resolve(params, seed=0))
        assert len(result.images) == params.num_images
        assert min(map(psnr, result.images, theirs)) >= MIN_PSNR, params
    assert engine(kind).stats.mean_requests_per_step > 1, "requests shared steps"


@pytest.mark.parametrize("kind", KINDS)
def test_everything_in_a_request_changes_its_image(
    kind: QwenImageKind, engine: Callable[[QwenImageKind], Engine]
) -> None:
    """Rule out that parity on random weights holds because all images are alike."""
    plain = replace(BATCHES[kind](1)[-1], guidance_scale=4.0, num_images=1, num_inference_steps=3)
    changes: list[dict[str, Any]] = [
        {"prompt": "green"},
        {"negative_prompt": "a yellow ring"},
        {"guidance_scale": 1.0},
        {"seed": 1},
        {"num_inference_steps": 4},
    ]
    images = [
        result.images[0]
        for result in engine(kind).generate([plain, *(replace(plain, **each) for each in changes)])
    ]
    assert all(psnr(images[0], other) < 42 for other in images[1:])


@pytest.mark.parametrize("kind", ["edit-2511", pytest.param("image", marks=SLOW)])
def test_in_deterministic_mode_company_changes_no_bit(kind: QwenImageKind, folder: Folder) -> None:
    config = EngineConfig(deterministic=True, token_budget=100_000, num_threads=2)
    with Engine.load(str(folder(kind)), device="cpu", dtype="float32", config=config) as strict:
        batch = BATCHES[kind](3)[-4:]
        together = [[image.tobytes() for image in result.images] for result in strict.generate(batch)]
        alone = [[image.tobytes() for image in strict.generate(params).images] for params in batch]
    assert together == alone


@pytest.mark.parametrize("kind", ["image", pytest.param("edit-2511", marks=SLOW)])
def test_half_precision_stays_close_to_float32(
    kind: QwenImageKind, engine: Callable[[QwenImageKind], Engine], folder: Folder
) -> None:
    batch = BATCHES[kind](2)[-3:]
    exact = engine(kind).generate(batch)
    with Engine.load(str(folder(kind)), device="cpu", dtype="bfloat16") as rounded:
        found = rounded.generate(batch)
    pairs = zip(exact, found, strict=True)
    assert min(psnr(ours.images[0], other.images[0]) for ours, other in pairs) > 15


@pytest.mark.parametrize(
    ("quantization", "least"),
    [("int8", 35), pytest.param("fp8", 25, marks=SLOW), pytest.param("int4", 12, marks=SLOW)],
)
def test_quantized_weights_stay_close_to_their_own(
    quantization: str, least: float, engine: Callable[[QwenImageKind], Engine], folder: Folder
) -> None:
    batch = starts(4)[:3]
    with Engine.load(str(folder("image")), device="cpu", dtype="float32", quantization=quantization) as few:
        assert few.describe()["quantization"] == quantization
        pairs = list(zip(few.generate(batch), engine("image").generate(batch), strict=True))
    found = [psnr(ours.images[0], own.images[0]) for ours, own in pairs]
    assert least < min(found) < 100, "quantized, and not too much"


def draw(engine: Engine, **values: Any) -> Image.Image:
    params = GenerationParams(
        prompt="a star", width=64, height=64, num_inference_steps=3, seed=1, guidance_scale=4.0
    )
    return engine.generate(replace(params, **values)).images[0]


def test_without_a_negative_prompt_a_blank_one_guides(engine: Callable[[QwenImageKind], Engine]) -> None:
    images = [draw(engine("image"), negative_prompt=negative) for negative in (None, " ", "")]
    assert psnr(images[0], images[1]) > 100
    assert psnr(images[0], images[2]) < 60


def test_references_count_by_their_order_and_number(engine: Callable[[QwenImageKind], Engine]) -> None:
    first, second = photo(5, 64, 48), photo(6, 32, 64)
    chosen = [first, (first, second), (second, first), (first, first)]
    images = [draw(engine("edit-2511"), image=image) for image in chosen]
    assert len({image.tobytes() for image in images}) == len(images)


def test_images_in_prompts_may_have_the_positions_of_training(
    engine: Callable[[QwenImageKind], Engine], folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare to diffusers' pipeline with what it does not hand on: which tokens are of images."""
    settings = {"max_reference_pixels": PIXELS, "grid_positions": True}
    shutil.copytree(folder("edit-plus"), tmp_path, dirs_exist_ok=True)
    (tmp_path / "diffuserve.json").write_text(json.dumps(settings))
    with Engine.load(str(tmp_path), device="cpu", dtype="float32") as trained:
        [params] = [trained.spec.resolve(each, seed=0) for each in edits(5)[:1]]
        [found, *_] = trained.generate(params).images
    encoder = reference("QwenImageEditPlusPipeline", tmp_path).text_encoder
    forward, token = encoder.forward, encoder.config.image_token_id

    def with_types(input_ids: torch.Tensor, **values: Any) -> Any:
        return forward(input_ids=input_ids, mm_token_type_ids=(input_ids == token).int(), **values)

    monkeypatch.setattr(encoder, "forward", with_types)
    assert psnr(found, drawn_by_reference(tmp_path, params)[0]) >= MIN_PSNR
    assert psnr(found, engine("edit-plus").generate(params).images[0]) < 60


def test_a_reference_of_nan_spoils_no_neighbor(engine: Callable[[QwenImageKind], Engine]) -> None:
    pipeline = packed(engine("edit-2511").pipeline)
    wanted = [pipeline.spec.resolve(params, seed=0) for params in edits(2)[:3]]
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


def test_a_prompt_that_is_too_long_is_cut_with_a_warning(engine: Callable[[QwenImageKind], Engine]) -> None:
    params = GenerationParams(
        prompt="word " * 60, width=64, height=64, num_inference_steps=1, max_sequence_length=16, seed=1
    )
    [warning] = engine("image").generate(replace(params, guidance_scale=1.0)).warnings
    assert "the prompt with its template" in warning
    assert "the rest was cut off" in warning
