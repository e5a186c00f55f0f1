"""FLUX.1's folders say what their models can do."""

import json
from pathlib import Path
from typing import Any

import pytest

from diffuserve.domain.errors import InvalidModel, InvalidParams
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.families.flux.family import FLUX
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.testing.checkpoints import FluxKind, write_flux_checkpoint

IMAGE = InputImage.blank(64, 48)
CLASSES = {
    "FluxPipeline": "dev",
    "FluxImg2ImgPipeline": "dev",
    "FluxInpaintPipeline": "dev",
    "FluxKontextPipeline": "dev",
    "FluxFillPipeline": "fill",
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[FluxKind, Path]:
    kinds: tuple[FluxKind, ...] = ("schnell", "dev", "fill", "kontext")
    return {kind: write_flux_checkpoint(tmp_path_factory.mktemp(kind), kind=kind) for kind in kinds}


@pytest.fixture
def folder(checkpoints: dict[FluxKind, Path], tmp_path: Path) -> Any:
    """Return a copy of a checkpoint's configs with some values changed."""

    def build(kind: FluxKind, **changes: dict[str, Any]) -> ModelFolder:
        for file in checkpoints[kind].rglob("*.json"):
            copy = tmp_path / file.relative_to(checkpoints[kind])
            copy.parent.mkdir(exist_ok=True, parents=True)
            copy.write_bytes(file.read_bytes())
        files = {
            "index": "model_index",
            "transformer": "transformer/config",
            "scheduler": "scheduler/scheduler_config",
        }
        for name, values in changes.items():
            file = tmp_path / f"{files[name]}.json"
            file.write_text(json.dumps(json.loads(file.read_text()) | values))
        return ModelFolder(tmp_path)

    return build


@pytest.mark.parametrize("class_name", CLASSES)
def test_every_class_has_defaults_of_its_own(folder: Any, class_name: str) -> None:
    spec = FLUX.read_spec(folder(CLASSES[class_name], index={"_class_name": class_name}))
    steps, guidance = (50, 30.0) if class_name == "FluxFillPipeline" else (28, 3.5)
    assert (spec.num_inference_steps, spec.guidance_scale) == (steps, guidance)
    request = spec.resolve(spec.simple_request("a star"), seed=0)
    assert (request.strength, request.mask is None) == ((1.0, False) if steps == 50 else (None, True))


def test_plain_models_start_from_an_image(folder: Any) -> None:
    spec = FLUX.read_spec(folder("schnell"))
    started = spec.resolve(spec.simple_request("a star", image=IMAGE, num_inference_steps=28), seed=0)
    masked = spec.resolve(spec.simple_request("a star", image=IMAGE, mask=IMAGE), seed=0)
    assert (started.strength, spec.num_steps(started)) == (0.6, 17)
    assert masked.strength == 1.0
    assert (started.width, started.height) == (64, 48)


def test_kontext_takes_references_and_nothing_else(folder: Any) -> None:
    spec = FLUX.read_spec(folder("kontext"))
    several = spec.resolve(spec.simple_request("a star", image=[IMAGE] * 4), seed=0)
    assert spec.reference_tokens(several) == 4 * 4 * 3
    for values in ({"strength": 0.5}, {"mask": IMAGE}, {"image": [IMAGE] * 5}):
        with pytest.raises(InvalidParams):
            spec.resolve(spec.simple_request("a star", **{"image": IMAGE, **values}), seed=0)


def test_fill_needs_an_image_and_a_mask(folder: Any) -> None:
    spec = FLUX.read_spec(folder("fill"))
    lacking: dict[str, dict[str, Any]] = {"image": {}, "mask": {"image": IMAGE}}
    for field, values in lacking.items():
        with pytest.raises(InvalidParams, match=f"^{field}="):
            spec.resolve(GenerationParams(prompt="a star", **values), seed=0)


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("dev", {"index": {"_class_name": "FluxFillPipeline"}}, "must be 384 and 64 for FluxFillPipeline"),
        ("fill", {"index": {"_class_name": "FluxPipeline"}}, "must be 64 and 64 for FluxPipeline"),
        ("dev", {"transformer": {"out_channels": 32}}, "out_channels=32"),
        ("dev", {"scheduler": {"_class_name": "DDIMScheduler"}}, "_class_name='DDIMScheduler'"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    folder: Any, kind: FluxKind, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidModel, match=words):
        FLUX.read_spec(folder(kind, **changes))


def test_a_scheduler_of_heun_is_the_default_sampler(folder: Any) -> None:
    spec = FLUX.read_spec(folder("dev", scheduler={"_class_name": "FlowMatchHeunDiscreteScheduler"}))
    request = spec.resolve(spec.simple_request("a star", num_inference_steps=4), seed=0)
    assert spec.num_steps(request) == 7
