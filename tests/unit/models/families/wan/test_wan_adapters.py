"""Adapters of Wan's checkpoints that have two transformers, one for high noise and one for low."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from diffuserve.domain.errors import InvalidAdapter
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.loading import load_model, parse_plan
from diffuserve.engine.model_runner import image_generators
from diffuserve.models.adapters.files.adapter_file import open_adapter
from diffuserve.models.adapters.files.base_layers import plan_for
from diffuserve.models.adapters.files.read_adapter import read_adapter
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.adapted.adapters import Uses
from diffuserve.models.pipelines.base import DenoiseInput, PackedPipeline, packed
from diffuserve.testing.wan_checkpoints import write_wan_checkpoint

WIDTH, RANK = 64, 4
HIGH_NOISE, LOW_NOISE = 999.0, 1.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wan_checkpoint(tmp_path_factory.mktemp("wan") / "model", kind="a14b", seed=5)


def make_inputs(pipeline: PackedPipeline) -> dict[float, DenoiseInput]:
    """Return a request at a high and at a low level of noise."""
    asked = GenerationParams(prompt="a ring", width=32, height=32, num_frames=5, num_inference_steps=4)
    params = pipeline.spec.resolve(asked, seed=1)
    [conditioning] = pipeline.encode([params])
    latents = pipeline.init_latents(params, conditioning, image_generators(params)).latents
    return {at: DenoiseInput(params, conditioning, latents, at) for at in (HIGH_NOISE, LOW_NOISE)}


def make_pair(prefix: str, down: str, up: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        f"{prefix}.{down}.weight": torch.randn(RANK, WIDTH, generator=generator) / WIDTH**0.5,
        f"{prefix}.{up}.weight": torch.randn(WIDTH, RANK, generator=generator),
    }


@pytest.mark.parametrize(
    ("layer", "parts", "changed"),
    [
        ("lora_unet_blocks_0_cross_attn_v", ("lora_down", "lora_up"), HIGH_NOISE),
        ("transformer.blocks.0.attn2.to_v", ("lora_A", "lora_B"), HIGH_NOISE),
        ("transformer_2.blocks.0.attn2.to_v", ("lora_A", "lora_B"), LOW_NOISE),
    ],
)
def test_an_adapter_changes_the_transformer_that_it_names(
    folder: Path, tmp_path: Path, layer: str, parts: tuple[str, str], changed: float
) -> None:
    file = tmp_path / "adapter.safetensors"
    save_file(make_pair(layer, *parts), file)
    pipeline = packed(load_model(folder, parse_plan("cpu", "float32", None, None)).pipeline)
    components = read_adapter(plan_for(open_adapter(file), ModelFolder(folder)))
    used: Uses = ((pipeline.place_adapter("own", components), 1.0),)
    for at, plain in make_inputs(pipeline).items():
        before, after = pipeline.denoise([plain, replace(plain, adapters=used)])
        assert torch.allclose(before, after, rtol=0, atol=1e-4) is (at != changed)


def test_a_second_transformer_that_is_not_there_is_named(tmp_path: Path) -> None:
    base = write_wan_checkpoint(tmp_path / "model", seed=5)
    save_file(make_pair("transformer_2.blocks.0.attn2.to_v", "lora_A", "lora_B"), tmp_path / "a.safetensors")
    with pytest.raises(InvalidAdapter, match="transformer_2"):
        plan_for(open_adapter(tmp_path / "a.safetensors"), ModelFolder(base))
