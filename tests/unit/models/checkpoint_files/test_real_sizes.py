"""Files of the sizes that are published fit the classes that they are converted for; none has content."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLWan,
    FluxTransformer2DModel,
    UNet2DConditionModel,
    WanTransformer3DModel,
    ZImageTransformer2DModel,
)
from transformers import CLIPTextConfig, CLIPTextModelWithProjection

from diffuserve.models.checkpoint_files.checkpoint_file import TensorInfo
from diffuserve.models.checkpoint_files.converters import convert
from diffuserve.models.checkpoint_files.deferred import Deferred
from diffuserve.models.checkpoint_files.shapes import derive_config
from support.original_layouts import (
    Layout,
    flux_layout,
    image_vae_layout,
    open_clip_layout,
    unet_layout,
    wan_layout,
    wan_vae_layout,
    z_image_layout,
)

XL: Mapping[str, Any] = {
    "block_out_channels": (320, 640, 1280),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": [1, 2, 10],
    "attention_head_dim": [5, 10, 20],
    "cross_attention_dim": 2048,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
VAE: Mapping[str, Any] = {
    "block_out_channels": (128, 256, 512, 512),
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "layers_per_block": 2,
}


def clip_g() -> Any:
    sizes = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32}
    config = CLIPTextConfig(num_attention_heads=20, projection_dim=1280, **sizes)
    return CLIPTextModelWithProjection(config)


@pytest.mark.parametrize(
    ("build", "layout", "converter", "num_tensors"),
    [
        (lambda: UNet2DConditionModel(cross_attention_dim=768), unet_layout(2), "unet", 686),
        (lambda: UNet2DConditionModel(**XL), unet_layout(2), "unet", 1680),
        (lambda: AutoencoderKL(**VAE), image_vae_layout, "image_vae", 248),
        (clip_g, open_clip_layout, "open_clip", 389),
        (lambda: FluxTransformer2DModel(guidance_embeds=True), flux_layout, "flux", 780),
        (lambda: FluxTransformer2DModel(in_channels=384, out_channels=64), flux_layout, "flux", 776),
        (lambda: WanTransformer3DModel(), wan_layout, "wan", 1095),
        (
            lambda: WanTransformer3DModel(in_channels=36, image_dim=1280, added_kv_proj_dim=5120),
            wan_layout,
            "wan",
            1303,
        ),
        (lambda: AutoencoderKLWan(), wan_vae_layout, "wan_vae", 194),
        (lambda: ZImageTransformer2DModel(), z_image_layout, "z_image", 453),
    ],
)
def test_a_published_size_is_converted_name_by_name(
    build: Callable[[], Any], layout: Layout, converter: str, num_tensors: int
) -> None:
    with torch.device("meta"):
        module = build()
    wanted = module.state_dict()
    original = layout(wanted)
    assert len(original) == num_tensors
    config = dict(module.config) if isinstance(module.config, dict) else module.config.to_dict()
    infos = {name: TensorInfo(tuple(tensor.shape), "float32", "F32") for name, tensor in original.items()}
    assert derive_config(converter, infos, config) == config
    deferred = {name: Deferred(meta, unread, frozenset({name})) for name, meta in original.items()}
    found: Mapping[str, Deferred] = convert(converter, dict(deferred), config)
    assert {name: tensor.meta.shape for name, tensor in found.items()} == {
        name: tensor.shape for name, tensor in wanted.items()
    }
    assert {source for tensor in found.values() for source in tensor.sources} == original.keys()


def unread() -> torch.Tensor:
    raise AssertionError("converting reads no tensor")
