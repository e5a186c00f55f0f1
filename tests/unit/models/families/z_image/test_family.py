"""Z-Image's folders say what their models can do."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diffuserve.domain.errors import InvalidModel, InvalidParams
from diffuserve.domain.models.parts import ALL_PARTS, Parts
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.models.families.z_image.config import ZImageConfig
from diffuserve.models.families.z_image.family import Z_IMAGE
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.registry import known_families, load_family
from diffuserve.testing.z_image_checkpoints import write_z_image_checkpoint

IMAGE = InputImage.blank(64, 48)
Folder = Callable[..., ModelFolder]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_z_image_checkpoint(tmp_path_factory.mktemp("models") / "z-image")


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Folder:
    """Return a copy of the checkpoint's configs with some values changed."""

    def build(name: str = "z-image", **changes: dict[str, Any]) -> ModelFolder:
        for file in checkpoint.rglob("*.json"):
            copy = tmp_path / name / file.relative_to(checkpoint)
            copy.parent.mkdir(exist_ok=True, parents=True)
            copy.write_bytes(file.read_bytes())
        for component, values in changes.items():
            stem = "scheduler_config" if component == "scheduler" else "config"
            file = tmp_path / name / component / f"{stem}.json"
            file.write_text(json.dumps(json.loads(file.read_text()) | values))
        return ModelFolder(tmp_path / name)

    return build


def resolved(spec: ModelSpec, **values: Any) -> Any:
    return spec.resolve(spec.simple_request("a star", **values), seed=0)


@pytest.mark.parametrize("name", ["ZImagePipeline", "ZImageImg2ImgPipeline", "ZImageInpaintPipeline"])
def test_its_classes_are_of_this_family(name: str) -> None:
    assert load_family(known_families()[name]) is Z_IMAGE


@pytest.mark.parametrize(
    ("name", "steps", "guidance", "passes"), [("z-image", 50, 5.0, 2), ("Z-Image-Turbo", 9, 0.0, 1)]
)
def test_turbo_is_known_by_its_name(
    folder: Folder, name: str, steps: int, guidance: float, passes: int
) -> None:
    spec = Z_IMAGE.read_spec(folder(name))
    request = resolved(spec)
    assert (request.num_inference_steps, request.guidance_scale) == (steps, guidance)
    assert spec.num_passes(request) == passes


def test_any_guidance_above_0_takes_two_passes(folder: Folder) -> None:
    spec = Z_IMAGE.read_spec(folder())
    passes = {scale: spec.num_passes(resolved(spec, guidance_scale=scale)) for scale in (0.0, 0.1, 1.0, 4.0)}
    assert passes == {0.0: 1, 0.1: 2, 1.0: 2, 4.0: 2}


def test_it_starts_from_an_image(folder: Folder) -> None:
    spec = Z_IMAGE.read_spec(folder())
    started = resolved(spec, image=IMAGE, num_inference_steps=28)
    assert (started.strength, spec.num_steps(started)) == (0.6, 17)
    assert resolved(spec, image=IMAGE, mask=IMAGE).strength == 1.0
    assert (started.width, started.height) == (64, 48)


def test_a_wrong_multiple_is_refused_with_the_nearest(folder: Folder) -> None:
    spec = Z_IMAGE.read_spec(folder())
    with pytest.raises(InvalidParams, match=r"^width=65.*64 or 80"):
        resolved(spec, width=65)


def test_positions_bound_sizes_and_prompts(folder: Folder) -> None:
    spec = Z_IMAGE.read_spec(folder(transformer={"axes_lens": [300, 40, 96]}))
    assert (spec.max_size, spec.longest_sequence_length) == (640, 288)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"transformer": {"in_channels": 8}}, "in_channels=8 must be the VAE's latent_channels=16"),
        ({"text_encoder": {"hidden_size": 64}}, "cap_feat_dim=32 must be the text encoder's hidden_size=64"),
        ({"text_encoder": {"num_hidden_layers": 0}}, "num_hidden_layers"),
        ({"transformer": {"siglip_feat_dim": 1152}}, "siglip_feat_dim"),
        ({"transformer": {"axes_dims": [8, 8, 10]}}, "axes_dims=.8, 8, 10. must be even numbers whose sum"),
        ({"transformer": {"axes_lens": [33, 64, 64]}}, "the first must be at least 34"),
        ({"transformer": {"all_patch_size": [2, 4]}}, "all_patch_size"),
        ({"scheduler": {"_class_name": "DDIMScheduler"}}, "_class_name='DDIMScheduler' is not supported"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    folder: Folder, changes: dict[str, dict[str, Any]], words: str
) -> None:
    with pytest.raises(InvalidModel, match=words):
        Z_IMAGE.read_spec(folder(**changes))


def test_the_transformers_folder_is_read_for_prompts_too_and_once(folder: Folder) -> None:
    opened = folder()
    assert Z_IMAGE.weight_folders(opened, ALL_PARTS) == ("text_encoder", "transformer", "vae")
    decoding = Parts(encoding=False, denoising=False)
    assert Z_IMAGE.weight_folders(opened, decoding) == ("vae",)


def test_a_step_of_the_published_model_has_the_operations_of_its_weights() -> None:
    """Count 6.15 billion parameters: of them 5.66 billion are products of the blocks that a step runs."""
    config = ZImageConfig()
    assert config.token_operations == pytest.approx(2 * 5.66e9, rel=0.01)
    assert (config.hidden_dim, config.head_dim, config.longest_prompt) == (10_240, 128, 992)
