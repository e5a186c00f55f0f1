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
from diffuserve.models.video_autoencoder.blocks import CausalConv
from diffuserve.models.video_autoencoder.config import VideoVaeConfig
from diffuserve.models.video_autoencoder.cost import image_bytes
from diffuserve.models.video_autoencoder.decoder import VideoDecoder
from diffuserve.models.video_autoencoder.encoder import VideoEncoder
from diffuserve.models.video_autoencoder.image_frames import ImageFrames
from diffuserve.models.video_autoencoder.video_vae import VideoVae
from diffuserve.models.weights.load_plan import LoadPlan
from support.live_tensors import LiveTensors
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


def load_images(folder: Path) -> tuple[AutoencoderKLQwenImage, ImageFrames]:
    reference = make_qwen_image_vae(WAN_21)
    return reference, ImageFrames(
        save_wan_vae(reference, folder), LoadPlan(torch.device("cpu"), torch.float32)
    )


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


@torch.inference_mode()
def test_families_have_images_from_normalized_latents_and_back(tmp_path: Path) -> None:
    reference, vae = load_images(tmp_path)
    mean, std = (torch.tensor(WAN_21[name]).view(1, -1, 1, 1) for name in ("latents_mean", "latents_std"))
    latents, pixels = random(2, 4, 5, 7), random(1, 3, 40, 56)
    wanted = reference.decode((latents * std + mean)[:, :, None]).sample[:, :, 0]
    levels = ((wanted / 2 + 0.5) * 255).permute(0, 2, 3, 1)
    for image, expected in zip(vae.decode(latents), levels, strict=True):
        found = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(expected.shape)
        assert (found - expected).abs().max() < 0.51, "rounded to the nearest level"
    encoded, distribution = vae.encode(pixels), reference.encode(pixels[:, :, None]).latent_dist
    assert_equal(vae.normalize(encoded.mode()), (distribution.mode()[:, :, 0] - mean) / std)
    assert_equal(encoded.std, distribution.std[:, :, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_of_decoding_an_image_is_predicted(dtype: torch.dtype) -> None:
    config = VideoVaeConfig()
    with torch.device("meta"):
        decoder = VideoDecoder(config).to(dtype)
        latents = torch.zeros(1, 16, 64, 64, dtype=dtype).to(memory_format=torch.channels_last)
    for layer in decoder.modules():
        if isinstance(layer, CausalConv):
            layer.prepare()
    with torch.inference_mode(), LiveTensors() as live:
        decoder(latents, None)
    assert 0.99 < image_bytes(config, 512 * 512, dtype.itemsize) / live.peak < 1.1


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
    with pytest.raises(InvalidModel, match="input_channels=4 must be 3"):
        read({"input_channels": 4}, tmp_path)
