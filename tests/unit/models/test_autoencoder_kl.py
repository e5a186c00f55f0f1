"""The image decoder beside diffusers' `AutoencoderKL`, on random weights and latents."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL
from safetensors.torch import save_file
from torch import Tensor

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.folder import ModelFolder
from diffuserve.models.layers.autoencoder_config import AutoencoderConfig
from diffuserve.models.layers.autoencoder_kl import ImageDecoder, load_decoder

CPU = torch.device("cpu")
FLUX: dict[str, Any] = {
    "block_out_channels": (8, 8, 16),
    "down_block_types": ("DownEncoderBlock2D",) * 3,
    "up_block_types": ("UpDecoderBlock2D",) * 3,
    "latent_channels": 16,
    "norm_num_groups": 4,
    "sample_size": 32,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
}
STABLE_DIFFUSION = FLUX | {"latent_channels": 4, "layers_per_block": 2, "use_post_quant_conv": True}
WITHOUT_ATTENTION = FLUX | {"mid_block_add_attention": False, "block_out_channels": (8, 16, 24)}


def make_reference(config: dict[str, Any], dtype: torch.dtype = torch.float32) -> AutoencoderKL:
    torch.manual_seed(0)
    reference = AutoencoderKL(**config)
    for parameter in reference.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return reference.to(dtype=dtype, memory_format=torch.channels_last).eval()


def load(reference: AutoencoderKL, folder: Path, dtype: torch.dtype = torch.float32) -> ImageDecoder:
    file = folder / "vae" / "diffusion_pytorch_model.safetensors"
    file.parent.mkdir(exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in reference.state_dict().items()}, file)
    return load_decoder(config_of(reference.config, folder), [file], CPU, dtype)


def config_of(values: Mapping[str, Any], folder: Path) -> AutoencoderConfig:
    (folder / "vae").mkdir(exist_ok=True)
    (folder / "vae" / "config.json").write_text(json.dumps(dict(values)))
    return AutoencoderConfig.read(ModelFolder(folder))


def latents_of(config: dict[str, Any], rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    latents = torch.randn(2, config["latent_channels"], rows, columns, generator=generator)
    return latents.to(dtype=dtype, memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", [FLUX, STABLE_DIFFUSION, WITHOUT_ATTENTION])
@torch.inference_mode()
def test_a_decode_is_equal_to_the_references(
    config: dict[str, Any], dtype: torch.dtype, tmp_path: Path
) -> None:
    reference = make_reference(config, dtype)
    decoder, latents = load(reference, tmp_path, dtype), latents_of(config, 6, 10, dtype)
    assert torch.equal(decoder(latents), reference.decode(latents).sample)


@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (20, 12), (6, 30)])
@torch.inference_mode()
def test_a_decode_in_tiles_is_equal_to_the_references(rows: int, columns: int, tmp_path: Path) -> None:
    reference = make_reference(STABLE_DIFFUSION)
    decoder, latents = load(reference, tmp_path), latents_of(STABLE_DIFFUSION, rows, columns)
    assert torch.equal(decoder.decode_in_tiles(latents), reference.tiled_decode(latents).sample)


def test_the_encoder_of_a_checkpoint_is_not_loaded(tmp_path: Path) -> None:
    reference = make_reference(STABLE_DIFFUSION)
    names = set(load(reference, tmp_path).state_dict())
    assert names == {
        name for name in reference.state_dict() if name.split(".")[0] in ("decoder", "post_quant_conv")
    }


def test_a_tensor_of_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    reference = make_reference(FLUX)
    reference.decoder.conv_in = torch.nn.Conv2d(16, 24, 3)
    with pytest.raises(InvalidModel, match=r"decoder\.conv_in\.bias has shape"):
        load(reference, tmp_path)


@pytest.mark.parametrize(
    ("name", "value"), [("act_fn", "relu"), ("up_block_types", ["AttnUpDecoderBlock2D", "UpDecoderBlock2D"])]
)
def test_other_decoders_are_refused(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match=name):
        config_of(FLUX | {name: value}, tmp_path)
