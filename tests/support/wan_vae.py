"""Small random autoencoders of Wan and Qwen-Image, as diffusers saves them."""

import json
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLQwenImage, AutoencoderKLWan
from safetensors.torch import save_file

from diffuserve.models.folders.folder import ModelFolder

WAN_21: dict[str, Any] = {
    "base_dim": 8,
    "z_dim": 4,
    "dim_mult": [1, 2, 4, 4],
    "num_res_blocks": 2,
    "temperal_downsample": [False, True, True],
    "latents_mean": [-0.5, 0.25, 0.0, 1.0],
    "latents_std": [2.0, 1.5, 0.5, 1.0],
}
WAN_22: dict[str, Any] = WAN_21 | {
    "decoder_base_dim": 12,
    "is_residual": True,
    "in_channels": 12,
    "out_channels": 12,
    "patch_size": 2,
    "scale_factor_spatial": 16,
}
TINY: dict[str, Any] = WAN_22 | {
    "decoder_base_dim": None,
    "dim_mult": [1, 2, 2],
    "num_res_blocks": 1,
    "temperal_downsample": [True, True],
    "scale_factor_spatial": 8,
}


def make_wan_vae(config: dict[str, Any], dtype: torch.dtype = torch.float32) -> AutoencoderKLWan:
    """Return a random autoencoder whose features keep about their size, and whose pixels fill -1…1."""
    torch.manual_seed(0)
    reference = AutoencoderKLWan(**config)
    _fill(reference)
    return reference.to(dtype=dtype).eval()


def make_qwen_image_vae(config: dict[str, Any], dtype: torch.dtype = torch.float32) -> AutoencoderKLQwenImage:
    """Return Qwen-Image's, filled likewise."""
    torch.manual_seed(0)
    reference = AutoencoderKLQwenImage(**config)
    _fill(reference)
    return reference.to(dtype=dtype).eval()


def _fill(reference: AutoencoderKLWan | AutoencoderKLQwenImage) -> None:
    for name, parameter in reference.named_parameters():
        if name.endswith(".gamma"):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        elif name.endswith(".bias"):
            torch.nn.init.normal_(parameter, std=0.1)
        else:
            torch.nn.init.normal_(parameter, std=1.0 / (parameter.numel() / parameter.shape[0]) ** 0.5)
    with torch.no_grad():
        reference.decoder.conv_out.weight.mul_(0.5)


def save_wan_vae(reference: AutoencoderKLWan | AutoencoderKLQwenImage, folder: Path) -> ModelFolder:
    """Save an autoencoder as the component `vae` of a model folder."""
    component = folder / "vae"
    component.mkdir(exist_ok=True)
    config = {**reference.config, "_class_name": type(reference).__name__}
    (component / "config.json").write_text(json.dumps(config))
    tensors = {name: tensor.contiguous() for name, tensor in reference.state_dict().items()}
    save_file(tensors, component / "diffusion_pytorch_model.safetensors")
    return ModelFolder(folder)
