"""A model of FLUX.1-schnell's size with random weights, which cost what trained ones cost."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.gpu.stages.finding import CUDA, Setting
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.families.flux.config import FluxConfig
from diffuserve.models.families.flux.transformer import FluxTransformer
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.testing.checkpoints import redraw_weights, save_module, write_flux_checkpoint

TEXT_TOKENS = 256
_WEIGHTS = "diffusion_pytorch_model.safetensors"


@dataclass(frozen=True)
class Size:
    """A model's shapes, its images, and the side of the largest product."""

    name: str
    transformer: Mapping[str, Any]
    autoencoder: Mapping[str, Any]
    width: int
    height: int
    num_images: int
    product_side: int

    def request(self, seed: int, prompt: str = "a red circle") -> GenerationParams:
        return GenerationParams(
            prompt=prompt,
            width=self.width,
            height=self.height,
            num_inference_steps=4,
            max_sequence_length=TEXT_TOKENS,
            seed=seed,
        )


FLUX_1 = Size(
    name="flux-12b",
    transformer={
        "num_layers": 19,
        "num_single_layers": 38,
        "attention_head_dim": 128,
        "num_attention_heads": 24,
        "axes_dims_rope": [16, 56, 56],
    },
    autoencoder={
        "block_out_channels": [128, 256, 512, 512],
        "layers_per_block": 2,
        "norm_num_groups": 32,
        "sample_size": 1024,
    },
    width=1360,
    height=768,
    num_images=16,
    product_side=8192,
)
TINY = Size("tiny", {"num_layers": 1}, {}, width=64, height=32, num_images=2, product_side=64)


def size_of(setting: Setting) -> Size:
    return TINY if setting.is_pretended else FLUX_1


def write_model(setting: Setting) -> Path:
    """Write a checkpoint of the setting's size, 24 GB on a GPU, unless an earlier stage has."""
    size = size_of(setting)
    folder = setting.folder / size.name
    if not (folder / "transformer" / _WEIGHTS).exists():
        write_flux_checkpoint(folder, dtype=torch.bfloat16)
        _write_autoencoder(folder / "vae", size.autoencoder)
        _write_transformer(folder / "transformer", size.transformer)
    return folder


def _write_autoencoder(folder: Path, values: Mapping[str, Any]) -> None:
    from diffusers import AutoencoderKL

    autoencoder = AutoencoderKL.from_config({**json.loads((folder / "config.json").read_text()), **values})
    redraw_weights(autoencoder, torch.Generator().manual_seed(0))
    save_module(autoencoder.to(torch.bfloat16), folder)


def _write_transformer(folder: Path, values: Mapping[str, Any]) -> None:
    """Write the transformer's file last, and whole; its tensors are drawn on the GPU, in seconds."""
    config = {**json.loads((folder / "config.json").read_text()), **values}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / _WEIGHTS).unlink()
    kernel = choose_kernel(CUDA, torch.bfloat16, deterministic=False)
    with torch.device("meta"):
        transformer = FluxTransformer(FluxConfig.from_dict(config), kernel)
    shapes = {name: parameter.shape for name, parameter in transformer.named_parameters()}
    tensors = {}
    for name, place in transformer.placements().items():
        rows, *others = shapes[place.parameter]
        tensors[name] = _draw(name, (rows // place.num_parts, *others)).cpu()
    partial = folder / "partial"
    save_file(tensors, partial)
    partial.rename(folder / _WEIGHTS)


def _draw(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    noise = torch.randn(shape, device=CUDA, dtype=torch.bfloat16)
    if len(shape) > 1:
        return noise / math.sqrt(math.prod(shape[1:]))
    return 0.1 * noise + float("norm" in name and name.endswith("weight"))
