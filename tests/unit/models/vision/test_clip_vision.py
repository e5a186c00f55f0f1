"""CLIP's image encoder equals the one of transformers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    CLIPVisionModel,
    CLIPVisionModelWithProjection,
)

from diffuserve.media.input_image import as_image, input_image
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.folders.pretrained import load_module, load_processor
from diffuserve.models.vision.clip_vision import ClipImageEncoder
from diffuserve.models.vision.pixels import processed_image
from diffuserve.models.vision.vision_config import ClipVisionConfig, ImageProcessorConfig
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.testing.wan_checkpoints import write_wan_checkpoint

CPU = torch.device("cpu")
SIZES = ((80, 50), (50, 81), (28, 28), (9, 40), (301, 77))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return ModelFolder(write_wan_checkpoint(tmp_path_factory.mktemp("model") / "wan", kind="i2v", seed=3))


def noisy(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_images_are_brought_to_the_same_pixels(size: tuple[int, int], folder: ModelFolder) -> None:
    image = noisy(*size)
    processor = load_processor(CLIPImageProcessorPil, folder.component("image_processor"))
    theirs = processor(image, return_tensors="pt")
    ours = processed_image(input_image(image), ImageProcessorConfig.read(folder))
    torch.testing.assert_close(ours, theirs.pixel_values, atol=1e-6, rtol=0)


def test_gray_images_are_read_as_colored_ones(folder: ModelFolder) -> None:
    gray = input_image(noisy(40, 40), "L")
    config = ImageProcessorConfig.read(folder)
    colored = input_image(as_image(gray).convert("RGB"))
    assert torch.equal(processed_image(gray, config), processed_image(colored, config))


def test_states_before_the_last_layer_equal_those_of_transformers(folder: ModelFolder) -> None:
    reference = load_module(CLIPVisionModel, Path(folder.component("image_encoder")))
    encoder = ClipImageEncoder.read(folder, LoadPlan(CPU, torch.float32))
    image = input_image(noisy(60, 45))
    with torch.inference_mode():
        ours = encoder.encode(image)
        pixels = processed_image(image, encoder.processor)
        theirs = reference(pixels, output_hidden_states=True).hidden_states[-2][0]
    assert ours.shape == (encoder.num_tokens, 24)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_the_projected_state_equals_that_of_transformers(tmp_path: Path) -> None:
    shape = {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
    shape |= {"image_size": 28, "patch_size": 7, "projection_dim": 20}
    torch.manual_seed(5)
    reference = CLIPVisionModelWithProjection(CLIPVisionConfig(**shape, hidden_act="gelu")).eval()
    reference.save_pretrained(tmp_path / "image_encoder")
    folder = ModelFolder(tmp_path)
    config, files = ClipVisionConfig.read(folder, "image_encoder"), folder.weights("image_encoder")
    plan = LoadPlan(CPU, torch.float32)
    encoder = ClipImageEncoder(config, ImageProcessorConfig.square(28), files, plan, has_projection=True)
    with torch.inference_mode():
        pixels = encoder.pixels(input_image(noisy(60, 45)))
        ours, theirs = encoder.run(pixels), reference(pixels, output_hidden_states=True)
    assert ours.embedding is not None
    torch.testing.assert_close(ours.embedding, theirs.image_embeds, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ours.penultimate, theirs.hidden_states[-2], atol=1e-5, rtol=1e-4)
