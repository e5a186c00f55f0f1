"""Requests of FLUX.1 with ControlNets draw what diffusers' own pipelines do, beside others with none."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from PIL import Image

from diffuserve.domain.errors import InvalidModel, InvalidParams
from diffuserve.domain.requests.control_use import ControlUse
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.media.input_image import as_image
from diffuserve.models.folders.companions import companions_of
from diffuserve.models.registry import read_offer
from diffuserve.testing.checkpoints import write_flux_checkpoint
from diffuserve.testing.controlnet_checkpoints import write_flux_controlnet
from support.images import psnr
from support.photos import photo, rectangle, shown

pytestmark = pytest.mark.filterwarnings("ignore:`FluxPosEmbed` is deprecated:FutureWarning")

MIN_PSNR = 50.0  # decibel, float32 on a CPU
EDGES, DEPTH = photo(1, 64, 64), photo(2, 48, 80)
NETS: Mapping[str, Mapping[str, Any]] = {
    "edges": {},
    "depth": {"guidance_embeds": False},
    "many": {"num_mode": 3, "num_layers": 1, "num_single_layers": 2},
    "pixels": {"conditioning_embedding_channels": 16, "patch_size": 2, "num_single_layers": 0},
}
_PARTS = (*("scheduler", "vae", "text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2", "transformer"),)


@dataclass(frozen=True)
class Model:
    """A random checkpoint with several ControlNets, in the engine and in diffusers."""

    folder: Path
    nets: Mapping[str, Path]
    engine: Engine
    reference: Any

    def draw(self, params: GenerationParams) -> list[Image.Image]:
        """Draw each image by a call of its own, with a pipeline for what the request has."""
        uses = params.controls or ()
        kind, inputs = "", dict[str, Any](_inputs(params))
        if inputs:
            kind = "Inpaint" if "mask_image" in inputs else "Img2Img"
        if uses:
            kind = f"ControlNet{kind}"
            inputs |= _control_inputs(uses)
        parts = {name: self.reference.components[name] for name in _PARTS}
        if uses:
            nets = [
                diffusers.FluxControlNetModel.from_pretrained(
                    self.nets[use.name], local_files_only=True, trust_remote_code=False
                )
                for use in uses
            ]
            parts["controlnet"] = nets if len(nets) > 1 else nets[0]
        pipeline = getattr(diffusers, f"Flux{kind}Pipeline")(**parts)
        pipeline.set_progress_bar_config(disable=True)
        return [self._draw(pipeline, params, index, inputs) for index in range(params.num_images)]

    def _draw(self, pipeline: Any, params: GenerationParams, index: int, inputs: dict[str, Any]) -> Any:
        assert params.seed is not None
        return pipeline(
            prompt=params.prompt,
            width=params.width,
            height=params.height,
            num_inference_steps=params.num_inference_steps,
            guidance_scale=params.guidance_scale,
            max_sequence_length=params.max_sequence_length,
            generator=torch.Generator("cpu").manual_seed(params.seed + index),
            **inputs,
        ).images[0]


def _inputs(params: GenerationParams) -> dict[str, Any]:
    named = {"image": params.image, "mask_image": params.mask}
    inputs: dict[str, Any] = {
        name: as_image(image) for name, image in named.items() if isinstance(image, InputImage)
    }
    return inputs | ({"strength": params.strength} if inputs else {})


def _control_inputs(uses: tuple[ControlUse, ...] | list[ControlUse]) -> dict[str, Any]:
    values: dict[str, list[Any]] = {
        "control_image": [as_image(shown(use.image)) for use in uses],
        "controlnet_conditioning_scale": [use.weight for use in uses],
        "control_guidance_start": [use.start for use in uses],
        "control_guidance_end": [use.end for use in uses],
        "control_mode": [use.mode for use in uses],
    }
    return values if len(uses) > 1 else {name: value[0] for name, value in values.items()}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    root = tmp_path_factory.mktemp("model")
    layers = {"num_layers": 3, "num_single_layers": 4}
    folder = write_flux_checkpoint(root / "flux", kind="dev", seed=5, transformer=layers)
    nets = {
        name: write_flux_controlnet(root / name, folder, seed=seed, **options)
        for seed, (name, options) in enumerate(NETS.items())
    }
    reference = diffusers.FluxPipeline.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    config = EngineConfig(token_budget=100_000, num_threads=1)
    with Engine.load(folder, device="cpu", dtype="float32", config=config, controlnets=nets) as engine:
        yield Model(folder, nets, engine, reference)


def request(seed: int, *controls: ControlUse, **values: Any) -> GenerationParams:
    size = {"width": 64, "height": 64, "num_inference_steps": 4, "guidance_scale": 3.5}
    own = {**size, "max_sequence_length": 16, **values}
    return GenerationParams(prompt="a star", seed=seed, controls=controls, **own)


MIXED = (
    request(1),
    request(2, ControlUse("edges", EDGES)),
    request(3, ControlUse("edges", EDGES, 0.5), ControlUse("edges", DEPTH, 0.7), num_images=2),
    request(4, ControlUse("depth", DEPTH, start=0.25, end=0.75), width=96, height=48),
    request(5, ControlUse("many", EDGES, 0.6, mode=2), max_sequence_length=24),
    request(6, ControlUse("many", DEPTH, 0.8, mode=0), num_inference_steps=3),
    request(7, ControlUse("pixels", EDGES, 0.7), num_images=2),
    request(8, ControlUse("edges", EDGES), image=photo(3, 64, 64), strength=0.6),
    request(
        9,
        ControlUse("edges", EDGES, end=0.5),
        image=photo(3, 64, 64),
        mask=rectangle(64, 64, 20, 30, 60, 61),
        strength=0.8,
    ),
)


def test_a_mixed_batch_equals_diffusers(model: Model) -> None:
    drawn = model.engine.generate(MIXED)
    for params, result in zip(MIXED, drawn, strict=True):
        for ours, theirs in zip(result.images, model.draw(params), strict=True):
            assert psnr(ours, theirs) >= MIN_PSNR, params
    assert model.engine.stats.mean_requests_per_step > 3


def test_what_controls_do_shows_and_a_mode_is_demanded(model: Model) -> None:
    uses = [(), *((ControlUse(name, EDGES, mode=0 if name == "many" else None),) for name in NETS)]
    plain, *controlled = model.engine.generate([request(9, *own) for own in uses])
    assert all(psnr(plain.images[0], other.images[0]) < 40 for other in controlled)
    with pytest.raises(InvalidParams, match="give controls with a mode in 0…2"):
        model.engine.generate([request(9, ControlUse("many", EDGES))])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"joint_attention_dim": 8}, "joint_attention_dim=8 must be"),
        ({"num_attention_heads": 1}, "dim=.* must be"),
        ({"conditioning_embedding_channels": 3}, "patch_size=1 and conditioning_embedding_channels=3 must"),
        ({"_class_name": "SD3ControlNetModel"}, "SD3ControlNetModel is not supported"),
    ],
)
def test_a_controlnet_of_another_kind_is_refused_before_weights_are_read(
    change: dict[str, Any], reason: str, model: Model, tmp_path: Path
) -> None:
    config = json.loads((model.nets["edges"] / "config.json").read_text("utf-8"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps(config | change), "utf-8")
    with pytest.raises(InvalidModel, match=reason):
        read_offer(str(model.folder), companions_of({"other": tmp_path / "other"}))


def test_a_model_that_has_no_controlnets_refuses_them(model: Model, tmp_path: Path) -> None:
    kontext = write_flux_checkpoint(tmp_path / "kontext", kind="kontext")
    with pytest.raises(InvalidModel, match="have no ControlNets loaded beside them; leave controlnets=edges"):
        read_offer(str(kontext), companions_of({"edges": model.nets["edges"]}))
