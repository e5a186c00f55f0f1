"""Small IP-Adapters in the official layout and small FLUX.1 Redux folders, with random weights."""

from pathlib import Path
from typing import Literal

import torch
from torch import nn

from diffuserve.models.flux.config import FluxConfig
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


def write_redux(folder: Path, model: Path, *, seed: int = 0) -> Path:
    """Write a random FLUX.1 Redux for a folder of FLUX.1 into `folder`, in diffusers' format, and return it.

    Raise `ImportError` with the remedy unless diffusers and transformers are installed.
    """
    require_libraries()
    from diffusers.pipelines.flux.modeling_flux import ReduxImageEncoder
    from transformers import SiglipImageProcessorPil, SiglipVisionConfig, SiglipVisionModel

    config = SiglipVisionConfig(
        hidden_size=_WIDTH,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        image_size=_SIDE,
        patch_size=2,  # many tokens: beside those of a prompt few would hardly show
    )
    text_dim = FluxConfig.read(ModelFolder(model)).joint_attention_dim
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):  # the constructors draw from the global generator
        components = {
            "image_encoder": as_module(SiglipVisionModel(config)),
            "image_embedder": as_module(ReduxImageEncoder(_WIDTH, text_dim)),
        }
    for name, module in components.items():
        redraw_weights(module, generator)
        save_module(module, folder / name)
    processor = SiglipImageProcessorPil(size={"height": _SIDE, "width": _SIDE})
    processor.save_pretrained(folder / "feature_extractor")
    return folder


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
