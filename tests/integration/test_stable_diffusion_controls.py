"""Requests with ControlNets draw what diffusers' own pipelines do, beside others with other ones or none."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import pytest
from PIL import Image

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.requests.control_use import ControlUse
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.media.input_image import as_image
from diffuserve.models.folders.companions import companions_of
from diffuserve.models.registry import read_offer
from diffuserve.testing.controlnet_checkpoints import write_unet_controlnet
from diffuserve.testing.unet_checkpoints import write_unet_checkpoint
from support.images import psnr
from support.photos import photo, shown
from support.unet_reference import draw_with, load_reference

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

MIN_PSNR = 50.0  # decibel, float32 on a CPU
EDGES, DEPTH = photo(1, 64, 64), photo(2, 48, 80)


@dataclass(frozen=True)
class Model:
    """A random checkpoint of SDXL with two ControlNets, in the engine and in diffusers."""

    folder: Path
    controlnets: Mapping[str, Path]
    engine: Engine
    reference: Any

    def draw(self, params: GenerationParams) -> list[Image.Image]:
        """Draw as diffusers does, with a pipeline for what the request has."""
        uses = self.engine.spec.control_uses(params)
        image = params.images[0] if params.images else None
        inputs: dict[str, Any] = {"width": params.width, "height": params.height}
        if not uses:
            return draw_with(self.reference, params, **inputs)
        nets = [
            diffusers.ControlNetModel.from_pretrained(
                self.controlnets[use.name], local_files_only=True, trust_remote_code=False
            )
            for use in uses
        ]
        controls = [as_image(shown(use.image)) for use in uses]
        inputs |= {
            "controlnet_conditioning_scale": [use.weight for use in uses],
            "control_guidance_start": [use.start for use in uses],
            "control_guidance_end": [use.end for use in uses],
        }
        name = "StableDiffusionXLControlNetPipeline"
        if image is None:
            inputs["image"] = controls
        else:
            name = "StableDiffusionXLControlNetImg2ImgPipeline"
            pixels = as_image(shown(image)).resize(
                (inputs["width"], inputs["height"]), Image.Resampling.LANCZOS
            )
            inputs |= {"image": pixels, "control_image": controls, "strength": params.strength}
        parts = {key: part for key, part in self.reference.components.items() if "tower" not in key}
        pipeline = getattr(diffusers, name)(**parts, controlnet=nets)
        pipeline.set_progress_bar_config(disable=True)
        return draw_with(pipeline, params, **inputs)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    root = tmp_path_factory.mktemp("model")
    folder = write_unet_checkpoint(root / "xl", kind="xl", seed=5)
    nets = {
        name: write_unet_controlnet(root / name, folder, seed=i) for i, name in enumerate(["edges", "depth"])
    }
    config = EngineConfig(token_budget=100_000, num_threads=1)
    with Engine.load(folder, device="cpu", dtype="float32", config=config, controlnets=nets) as engine:
        yield Model(folder, nets, engine, load_reference(folder))


def request(seed: int, *controls: ControlUse, **values: Any) -> GenerationParams:
    values = {"width": 64, "height": 64, "num_inference_steps": 4, "guidance_scale": 5.0} | values
    return GenerationParams(prompt="a star", seed=seed, controls=controls, **values)


MIXED = (
    request(1),
    request(2, ControlUse("edges", EDGES)),
    request(3, ControlUse("edges", EDGES, 0.5), ControlUse("depth", DEPTH, 1.5), num_images=2),
    request(4, ControlUse("edges", DEPTH, start=0.25, end=0.75), ControlUse("edges", EDGES, end=0.5)),
    request(5, ControlUse("depth", DEPTH), width=96, height=48, guidance_scale=1.0),
    request(6, ControlUse("depth", EDGES), image=DEPTH, strength=0.8, sampler="euler"),
    request(7, ControlUse("depth", EDGES, start=0.5), sampler="dpmpp_2m", num_inference_steps=5),
)


def test_a_mixed_batch_equals_diffusers(model: Model) -> None:
    drawn = model.engine.generate(MIXED)
    for params, result in zip(MIXED, drawn, strict=True):
        for ours, theirs in zip(result.images, model.draw(params), strict=True):
            assert psnr(ours, theirs) >= MIN_PSNR, params
    assert model.engine.stats.mean_requests_per_step > 3


def test_a_control_image_goes_to_the_first_controlnet(model: Model) -> None:
    single = GenerationParams(
        prompt="a star", seed=8, num_inference_steps=3, control_image=EDGES, control_scale=0.7
    )
    resolved = model.engine.spec.resolve(single, 0)
    (ours,) = model.engine.generate([single])[0].images
    (theirs,) = model.draw(resolved)
    assert psnr(ours, theirs) >= MIN_PSNR


def test_what_a_control_does_shows(model: Model) -> None:
    plain, controlled = model.engine.generate([request(9), request(9, ControlUse("edges", EDGES))])
    assert psnr(plain.images[0], controlled.images[0]) < 35


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cross_attention_dim": 32}, "cross_attention_dim=32 must be 64, as the UNet's"),
        ({"block_out_channels": (32, 32)}, "block_out_channels"),
        ({"global_pool_conditions": True}, "global_pool_conditions=True is not supported"),
        ({"_class_name": "ControlNetUnionModel"}, "ControlNetUnionModel is not supported"),
        ({"conditioning_embedding_out_channels": [4, 8]}, "must have 4 levels"),
    ],
)
def test_a_controlnet_of_another_kind_is_refused_before_weights_are_read(
    change: dict[str, Any], reason: str, model: Model, tmp_path: Path
) -> None:
    config = json.loads((model.controlnets["edges"] / "config.json").read_text("utf-8"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps(config | change), "utf-8")
    with pytest.raises(InvalidModel, match=reason):
        read_offer(str(model.folder), companions_of({"other": tmp_path / "other"}))


@pytest.mark.parametrize(
    ("named", "reason"),
    [({"a b": "."}, "must be a name of letters"), ({"edges": "/nowhere"}, "is no folder; give the folder")],
)
def test_an_option_that_names_no_controlnet_is_refused(named: Mapping[str, str], reason: str) -> None:
    with pytest.raises(InvalidModel, match=reason):
        companions_of(named)
