"""Qwen2.5-VL's vision tower and its language model with images, beside transformers' and diffusers'."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import QwenImageEditPlusPipeline
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.offload.components import place
from diffuserve.models.offload.copier import SyncCopier
from diffuserve.models.text.qwen import PackedPrompts, load_qwen
from diffuserve.models.text.qwen_config import QwenConfig
from diffuserve.models.text.qwen_pixels import ImagePatches, image_patches
from diffuserve.models.text.qwen_vision import PackedPatches, QwenVision, load_qwen_vision
from diffuserve.models.text.qwen_vision_config import QwenPixelsConfig, QwenVisionConfig
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.testing.qwen_parts import qwen_processor, qwen_tokenizer, qwen_vl
from support.pretend_cuda import pretend_cuda

CPU = torch.device("cpu")
PLAN, KERNEL = LoadPlan(CPU, torch.float32), choose_kernel(CPU, torch.float32)
SIZES = [(300, 130), (64, 64), (90, 420)]
AREA, MAX_TOKENS = 256 * 256, 60
Parts = tuple[Any, Any]


@pytest.fixture(scope="module")
def parts() -> Parts:
    """Return a small Qwen2.5-VL with random weights, and its processor."""
    tokenizer = qwen_tokenizer()
    model: Any = qwen_vl(tokenizer)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2, generator=generator)
    return model.eval(), qwen_processor(tokenizer, MAX_TOKENS)


@pytest.fixture(scope="module")
def folder(parts: Parts, tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    path = tmp_path_factory.mktemp("qwen-vl")
    parts[0].save_pretrained(path / "text_encoder")
    parts[1].save_pretrained(path / "processor")
    return ModelFolder(path)


def make_images() -> list[InputImage]:
    generator = np.random.default_rng(0)
    return [
        InputImage(f"{width}", width, height, pixels=generator.bytes(3 * width * height))
        for width, height in SIZES
    ]


def opened(image: InputImage) -> Image.Image:
    assert image.pixels is not None
    return Image.frombytes("RGB", (image.width, image.height), image.pixels)


def patches(images: Sequence[InputImage], folder: ModelFolder) -> list[ImagePatches]:
    pixels, config = QwenPixelsConfig.read(folder), QwenVisionConfig.read(folder, "text_encoder")
    return [image_patches(image, AREA, pixels, config) for image in images]


def load_tower(folder: ModelFolder) -> QwenVision:
    config = QwenVisionConfig.read(folder, "text_encoder")
    return load_qwen_vision(config, folder.weights("text_encoder"), PLAN, KERNEL)


def scaled(images: Sequence[InputImage]) -> list[Image.Image]:
    return [opened(image).resize(image.scaled(AREA), Image.Resampling.LANCZOS) for image in images]


def reference_pixels(images: Sequence[InputImage], processor: Any) -> Any:
    return processor.image_processor(scaled(images), return_tensors="pt")


def test_pixels_are_those_of_the_reference(parts: Parts, folder: ModelFolder) -> None:
    expected = reference_pixels(make_images(), parts[1])
    found = patches(make_images(), folder)
    torch.testing.assert_close(torch.cat([each.pixels for each in found]), expected["pixel_values"])
    assert [(1, 2 * each.rows, 2 * each.columns) for each in found] == list(
        map(tuple, expected["image_grid_thw"].tolist())
    )


@torch.inference_mode()
def test_tokens_of_images_of_all_sizes_equal_the_reference(parts: Parts, folder: ModelFolder) -> None:
    expected = reference_pixels(make_images(), parts[1])
    tower = load_tower(folder)
    ours = tower(PackedPatches.of(patches(make_images(), folder), tower.config, CPU, torch.float32))
    theirs = parts[0].model.visual(expected["pixel_values"], grid_thw=expected["image_grid_thw"])
    torch.testing.assert_close(ours, theirs.pooler_output, rtol=0, atol=2e-5)


@torch.inference_mode()
def test_names_of_older_checkpoints_are_read(parts: Parts, folder: ModelFolder, tmp_path: Path) -> None:
    tower, tensors = load_tower(folder), parts[0].state_dict()
    old = {name.replace("model.visual.", "visual."): tensor.clone() for name, tensor in tensors.items()}
    save_file(old, file := tmp_path / "model.safetensors")
    loaded = load_qwen_vision(tower.config, [file], PLAN, KERNEL)
    packed = PackedPatches.of(patches(make_images(), folder), tower.config, CPU, torch.float32)
    assert torch.equal(loaded(packed), tower(packed))


@torch.inference_mode()
def test_blocks_pass_through_a_device_one_after_another(folder: ModelFolder) -> None:
    tower, images = load_tower(folder), patches(make_images(), folder)
    expected = tower(PackedPatches.of(images, tower.config, CPU, torch.float32))
    with pretend_cuda():
        cuda = torch.device("cuda:0")
        plan = LoadPlan(cuda, torch.float32, stay_on_host=True)
        moved = load_qwen_vision(tower.config, folder.weights("text_encoder"), plan, KERNEL)
        place([moved.component], Offload.LAYERS, cuda, SyncCopier())
        ours = moved(PackedPatches.of(images, tower.config, cuda, torch.float32)).cpu()
    torch.testing.assert_close(ours, expected, rtol=0, atol=2e-5)


PROMPTS = {"make it red": 1, "a naïve café, twice, beside it <|image_pad|>": 3, "another": 2}
"""Prompts, and how many images belong to each."""


def texts(template: str) -> list[str]:
    numbers = [range(1, count + 1) for count in PROMPTS.values()]
    images = [
        "".join(f"Picture {n}: <|vision_start|><|image_pad|><|vision_end|>" for n in own) for own in numbers
    ]
    return [template.format(own + prompt) for own, prompt in zip(images, PROMPTS, strict=True)]


def packed_prompts(
    template: str, folder: ModelFolder, processor: Any
) -> tuple[PackedPrompts, list[InputImage]]:
    """Return the prompts with their images' tokens in one row, and the images in their order."""
    images = [image for count in PROMPTS.values() for image in make_images()[:count]]
    grids = iter((each.rows, each.columns) for each in patches(images, folder))
    ids = [torch.tensor(own) for own in processor.tokenizer(texts(template)).input_ids]
    token = processor.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    of_prompts = [[next(grids) for _ in range(count)] for count in PROMPTS.values()]
    return PackedPrompts.with_images(ids, of_prompts, token, CPU), images


def encoded(prompts: PackedPrompts, images: Sequence[InputImage], folder: ModelFolder) -> tuple[Tensor, ...]:
    """Return the last states of each prompt."""
    tower = load_tower(folder)
    tokens = tower(PackedPatches.of(patches(images, folder), tower.config, CPU, torch.float32))
    config = QwenConfig.read(folder, "text_encoder")
    qwen = load_qwen(config, folder.weights("text_encoder"), PLAN, KERNEL)
    [states] = qwen(prompts, tokens)
    return torch.split(states, list(prompts.lengths))


@torch.inference_mode()
def test_states_of_prompts_with_images_equal_the_reference(parts: Parts, folder: ModelFolder) -> None:
    model, processor = parts
    prompts, images = packed_prompts("{}", folder, processor)
    found = iter(encoded(prompts, images, folder))
    for (prompt, count), text in zip(PROMPTS.items(), texts("{}"), strict=True):
        if prompt.endswith("<|image_pad|>"):
            next(found)  # the reference refuses a token of an image without one
            continue
        pixels = reference_pixels(make_images()[:count], processor)
        inputs = processor(text=[text], images=scaled(make_images()[:count]), return_tensors="pt")
        assert torch.equal(inputs["pixel_values"], pixels["pixel_values"])
        expected = model(**inputs, output_hidden_states=True).hidden_states[-1][0]
        torch.testing.assert_close(next(found), expected, rtol=0, atol=1e-5)


@torch.inference_mode()
def test_in_a_line_they_equal_diffusers(parts: Parts, folder: ModelFolder) -> None:
    model, processor = parts
    pipeline = QwenImageEditPlusPipeline(
        None, None, text_encoder=model, tokenizer=processor.tokenizer, processor=processor, transformer=None
    )
    prompts, images = packed_prompts(pipeline.prompt_template_encode, folder, processor)
    start = pipeline.prompt_template_encode_start_idx
    states = encoded(prompts.in_a_line(), images, folder)
    for (prompt, count), ours in zip(PROMPTS.items(), states, strict=True):
        if not prompt.endswith("<|image_pad|>"):
            expected, _ = pipeline._get_qwen_prompt_embeds([prompt], scaled(make_images()[:count]))
            torch.testing.assert_close(ours[start:], expected[0], rtol=0, atol=1e-5)


def test_a_prompt_without_a_place_for_an_image_is_refused() -> None:
    with pytest.raises(ValueError, match="2 images, but 1 tokens 7"):
        PackedPrompts.with_images([torch.tensor([1, 7, 2])], [[(1, 2), (3, 4)]], 7, CPU)


@given(width=st.integers(14, 2000), height=st.integers(14, 2000), largest=st.integers(60, 4000))
def test_sizes_are_those_of_the_reference(width: int, height: int, largest: int) -> None:
    config = QwenPixelsConfig(min_pixels=56 * 56, max_pixels=largest * 28 * 28)
    expected = smart_resize(height, width, 28, *config.bounds)
    assert config.resized(width, height, 28) == expected[::-1]


VISION = {"depth": 2, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "out_hidden_size": 32}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "has no vision_config: the text encoder reads no images"),
        (
            {"vision_config": VISION | {"num_heads": 3}},
            "hidden_size=16 must be a multiple of 4 × num",
        ),
        ({"vision_config": VISION | {"window_size": 27}}, "window_size=27 must be at least 28"),
        ({"vision_config": VISION | {"patch_size": 1 << 20}}, "patch_size=1048576"),
    ],
)
def test_a_tower_that_does_not_fit_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidModel, match=f"origin: .*{message}|origin: {message}"):
        QwenVisionConfig.from_dict(values, "origin")


@pytest.mark.parametrize("name", ["preprocessor_config.json", "processor_config.json"])
def test_bounds_of_images_are_read_from_old_and_new_files(name: str, tmp_path: Path) -> None:
    (tmp_path / "processor").mkdir()
    bounds: dict[str, Any] = {"min_pixels": 3136, "max_pixels": 50_000}
    if name == "processor_config.json":
        bounds = {"image_processor": {"size": {"shortest_edge": 3136, "longest_edge": 50_000}}}
    (tmp_path / "processor" / name).write_text(json.dumps(bounds))
    assert QwenPixelsConfig.read(ModelFolder(tmp_path)).bounds == (3136, 50_000)
