"""Qwen-Image's autoencoder, read as Wan's, beside diffusers' `AutoencoderKLQwenImage`, on random weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLQwenImage
from torch import Tensor

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.video_autoencoder.config import VideoVaeConfig
from diffuserve.models.video_autoencoder.decoder import VideoDecoder
from diffuserve.models.video_autoencoder.encoder import VideoEncoder
from diffuserve.models.video_autoencoder.video_vae import VideoVae
from diffuserve.models.weights.load_plan import LoadPlan
from support.wan_vae import WAN_21, make_qwen_image_vae, save_wan_vae

FEWER_STAGES = WAN_21 | {"dim_mult": [1, 2, 2], "temperal_downsample": [False, True]}
ALL = pytest.mark.parametrize("config", [WAN_21, FEWER_STAGES], ids=["four-stages", "three-stages"])


def read(values: dict[str, Any], folder: Path) -> VideoVaeConfig:
    (folder / "vae").mkdir()
    named = {**values, "_class_name": "AutoencoderKLQwenImage"}
    (folder / "vae" / "config.json").write_text(json.dumps(named))
    return VideoVaeConfig.read(ModelFolder(folder))


def load(config: dict[str, Any], folder: Path) -> tuple[AutoencoderKLQwenImage, VideoVae]:
    reference = make_qwen_image_vae(config)
    return reference, VideoVae(save_wan_vae(reference, folder), LoadPlan(torch.device("cpu"), torch.float32))


def random(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1)) * 2 - 1


def assert_equal(found: Tensor, wanted: Tensor) -> None:
    assert wanted.std() > 0.1
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


@ALL
@torch.inference_mode()
def test_an_image_is_decoded_as_by_the_reference(config: dict[str, Any], tmp_path: Path) -> None:
    reference, vae = load(config, tmp_path)
    latents = random(2, 4, 1, 5, 7)
    found = vae.decoder(latents[:, :, 0], None).permute(0, 3, 1, 2)
    assert_equal(found, reference.decode(latents).sample[:, :, 0])


@ALL
@torch.inference_mode()
def test_an_image_is_encoded_as_by_the_reference(config: dict[str, Any], tmp_path: Path) -> None:
    reference, vae = load(config, tmp_path)
    pixels = random(1, 3, 1, 5 * vae.config.scale, 7 * vae.config.scale)
    assert_equal(vae.encoder(pixels[:, :, 0], None), reference.encode(pixels).latent_dist.mode()[:, :, 0])


def test_parameters_of_the_published_one_are_named_and_shaped_as_in_the_reference(tmp_path: Path) -> None:
    with torch.device("meta"):
        reference = AutoencoderKLQwenImage()
        config = read(dict(reference.config), tmp_path)
        parts = (VideoDecoder(config), VideoEncoder(config))
    shapes = {name: tensor.shape for part in parts for name, tensor in part.named_parameters()}
    assert shapes == {name: tensor.shape for name, tensor in reference.named_parameters()}
    assert config.scale == reference.spatial_compression_ratio
    assert config.latents_std == tuple(reference.config.latents_std)


def test_channels_for_transparency_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match="in_channels=4"):
        read({"input_channels": 4}, tmp_path)
