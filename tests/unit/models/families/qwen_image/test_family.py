"""Qwen-Image's folders say what their models can do."""

import json
from pathlib import Path
from typing import Any

import pytest

from diffuserve.domain.errors import InvalidModel, InvalidParams
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.families.qwen_image.family import QWEN_IMAGE
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.testing.qwen_image_checkpoints import write_qwen_image_checkpoint

VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2}
IMAGE = InputImage.blank(64, 48)
FILES = {"index": "model_index.json", "scheduler": "scheduler/scheduler_config.json"}
DRAWING = ("QwenImagePipeline", "QwenImageImg2ImgPipeline", "QwenImageInpaintPipeline")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen_image_checkpoint(tmp_path_factory.mktemp("edit"), kind="edit-plus")


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Any:
    """Return a copy of a checkpoint's configs with some values changed."""

    def build(**changes: dict[str, Any]) -> ModelFolder:
        for file in checkpoint.rglob("*.json"):
            copy = tmp_path / file.relative_to(checkpoint)
            copy.parent.mkdir(exist_ok=True, parents=True)
            copy.write_bytes(file.read_bytes())
        for name, values in changes.items():
            file = tmp_path / FILES.get(name, f"{name}/config.json")
            file.write_text(json.dumps(json.loads(file.read_text()) | values))
        return ModelFolder(tmp_path)

    return build


@pytest.mark.parametrize("class_name", DRAWING)
def test_models_draw_from_a_prompt_from_an_image_and_within_a_mask(folder: Any, class_name: str) -> None:
    spec = QWEN_IMAGE.read_spec(folder(index={"_class_name": class_name}))
    assert (spec.num_inference_steps, spec.guidance_scale, spec.size_multiple) == (50, 4.0, 16)
    started = spec.resolve(spec.simple_request("a star", image=IMAGE), seed=0)
    masked = spec.resolve(spec.simple_request("a star", image=IMAGE, mask=IMAGE), seed=0)
    assert (started.strength, masked.strength, spec.num_steps(started)) == (0.6, 0.6, 30)


def test_guidance_doubles_the_passes(folder: Any) -> None:
    spec = QWEN_IMAGE.read_spec(folder())
    guided, plain = (
        spec.resolve(spec.simple_request("a star", guidance_scale=scale), seed=0) for scale in (1.1, 1.0)
    )
    assert (spec.num_passes(guided), spec.num_passes(plain)) == (2, 1)


@pytest.mark.parametrize(
    ("class_name", "most", "text"),
    [("QwenImageEditPlusPipeline", 4, 256), ("QwenImageEditPipeline", 1, 1_696)],
)
def test_editors_read_references_of_about_a_megapixel(
    folder: Any, class_name: str, most: int, text: int
) -> None:
    spec = QWEN_IMAGE.read_spec(folder(index={"_class_name": class_name}))
    request = spec.resolve(GenerationParams(prompt="a star", image=[IMAGE] * most), seed=0)
    assert (request.width, request.height) == (1184, 896)
    assert spec.reference_tokens(request) == most * 74 * 56
    assert spec.text_tokens(request) == 512 + most * text


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"image": [IMAGE] * 5}, "takes at most 4"),
        ({"image": None}, "needs an image"),
        ({"image": InputImage.blank(27, 64)}, "at least 28 pixels a side"),
        ({"image": InputImage.blank(4_000, 30)}, "100 times as long as wide"),
        ({"strength": 0.5}, "leave strength out"),
        ({"mask": IMAGE}, "leave mask out"),
        ({"width": 1_000}, "multiple of 16 pixels; try 992 or 1008"),
    ],
)
def test_editors_refuse_what_they_cannot_read(folder: Any, values: dict[str, Any], words: str) -> None:
    spec = QWEN_IMAGE.read_spec(folder(index={"_class_name": "QwenImageEditPlusPipeline"}))
    with pytest.raises(InvalidParams, match=words):
        spec.resolve(GenerationParams(prompt="a star", **{"image": IMAGE, **values}), seed=0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"transformer": {"in_channels": 128}}, "must be 64 and 16 for the VAE's z_dim=16"),
        ({"transformer": {"joint_attention_dim": 64}}, "a text encoder of another size"),
        ({"text_encoder": {"vision_config": VISION | {"out_hidden_size": 8}}}, "out_hidden_size=8 must be"),
        ({"text_encoder": {"vision_config": None}}, "the text encoder reads no images"),
        ({"transformer": {"axes_dims_rope": [4, 4, 4]}}, "must be even numbers that sum to"),
        ({"transformer": {"use_layer3d_rope": True}}, "use_layer3d_rope"),
        ({"transformer": {"num_layers": 100_000}}, "num_layers"),
        ({"scheduler": {"_class_name": "DDIMScheduler"}}, "_class_name='DDIMScheduler'"),
    ],
)
def test_parts_that_do_not_fit_are_refused(folder: Any, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidModel, match=words):
        QWEN_IMAGE.read_spec(folder(**changes))
