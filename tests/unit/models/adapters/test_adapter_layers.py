"""The tables know every layer that an adapter can change, by its names in diffusers and among trainers."""

from collections.abc import Callable
from typing import Any

import diffusers
import pytest
import torch
from diffusers.loaders.single_file_utils import convert_ldm_unet_checkpoint
from torch import nn

from diffuserve.models.adapters.files.layouts import LAYOUTS
from diffuserve.models.adapters.files.unet_layers import UNET

SDXL = {
    "block_out_channels": (32, 64, 64),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": (1, 2, 10),
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 48,
    "use_linear_projection": True,
}


def _flux() -> Any:
    return diffusers.FluxTransformer2DModel(num_layers=1, num_single_layers=1, guidance_embeds=True)


def _sd() -> Any:
    return diffusers.UNet2DConditionModel(block_out_channels=(32, 32, 32, 32))


def _sdxl() -> Any:
    return diffusers.UNet2DConditionModel(**SDXL)


@pytest.mark.parametrize(
    ("family", "make"),
    [
        ("flux", _flux),
        ("flux2", lambda: diffusers.Flux2Transformer2DModel(num_layers=1, num_single_layers=1)),
        ("z_image", lambda: diffusers.ZImageTransformer2DModel(n_layers=1)),
        ("qwen_image", lambda: diffusers.QwenImageTransformer2DModel(num_layers=1)),
        ("wan", lambda: diffusers.WanTransformer3DModel(num_layers=1, image_dim=8, added_kv_proj_dim=5120)),
        ("stable_diffusion", _sd),
        ("stable_diffusion", _sdxl),
    ],
)
def test_every_layer_is_known(family: str, make: Callable[[], nn.Module]) -> None:
    layout = LAYOUTS[family]
    with torch.device("meta"):
        model = make()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            for written in (f"{layout.denoiser}.{name}", f"lora_unet_{name.replace('.', '_')}"):
                located = layout.locate(written)
                assert located is not None, written
                assert [target.layer for target in located.found.targets] == [name]


_ORIGINAL = ("in_layers.2", "out_layers.3", "emb_layers.1", "skip_connection", "op", "conv", "proj_in")


@pytest.mark.parametrize("make", [_sd, _sdxl])
def test_block_numbers_of_unets_are_those_of_their_checkpoints(make: Callable[[], nn.Module]) -> None:
    """The conversion of checkpoints, which numbers blocks too, gives a layer the name that the table has."""
    with torch.device("meta"):
        own = make().state_dict()
    names = [
        f"{block}.{number}.{place}.{layer}"
        for block in ("input_blocks", "output_blocks")
        for number in range(12)
        for place in range(3)
        for layer in _ORIGINAL
    ]
    found = {name: located.targets[0].layer for name in names if (located := UNET.find(name)) is not None}
    held = {name: layer for name, layer in found.items() if f"{layer}.weight" in own}
    checkpoint = {
        f"model.diffusion_model.{name}.{kind}": f"{layer}.{kind}"
        for name, layer in held.items()
        for kind in ("weight", "bias")
    }
    converted = convert_ldm_unet_checkpoint(checkpoint, {"layers_per_block": 2})
    assert len(converted) > 60
    for name, layer in converted.items():
        assert layer in (None, name)
