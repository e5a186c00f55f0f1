"""Small IP-Adapters with random weights, in the official layout, beside small image encoders."""

from pathlib import Path
from typing import Literal

import torch
from torch import nn

from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.stable_diffusion.config import UNetConfig
from diffuserve.models.stable_diffusion.image_prompts.ip_adapter import (
    ENCODER,
    IpAdapterShape,
    ResamplerShape,
    tensors_of,
)
from diffuserve.testing.checkpoints import as_module, redraw_weights, require_libraries, save_module

_SIDE, _PATCH, _WIDTH, _PROJECTED = 28, 7, 24, 20
_RESAMPLER = ResamplerShape(width=32, inner=128, hidden=128, layers=4)  # diffusers builds four layers


def write_ip_adapter(
    folder: Path, model: Path, *, kind: Literal["plain", "plus"] = "plain", seed: int = 0
) -> Path:
    """Write a random IP-Adapter for a folder of Stable Diffusion, with its image encoder beside it.

    Return the adapter's file. Raise `ImportError` with the remedy unless diffusers and transformers are
    installed.
    """
    require_libraries()
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    _write_encoder(folder / ENCODER, generator)
    unet = UNetConfig.read(ModelFolder(model))
    shape = (
        IpAdapterShape(4, _PROJECTED, unet.cross_attention_dim)
        if kind == "plain"
        else IpAdapterShape(6, _WIDTH, unet.cross_attention_dim, _RESAMPLER)
    )
    tensors = {
        name: torch.randn(sides, generator=generator) * (sides[-1] ** -0.5 if len(sides) > 1 else 0.3)
        for name, sides in tensors_of(shape, unet).items()
    }
    file = folder / f"ip-adapter-{kind}.safetensors"
    save_file(tensors, file)
    return file


def _write_encoder(folder: Path, generator: torch.Generator) -> None:
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    config = CLIPVisionConfig(
        hidden_size=_WIDTH,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        image_size=_SIDE,
        patch_size=_PATCH,
        projection_dim=_PROJECTED,
        hidden_act="gelu",
    )
    with torch.random.fork_rng(devices=[]):  # the constructor draws from the global generator
        encoder: nn.Module = as_module(CLIPVisionModelWithProjection(config))
    redraw_weights(encoder, generator)
    save_module(encoder, folder)
