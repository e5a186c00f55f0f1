"""Wan's autoencoder beside diffusers' `AutoencoderKLWan`, on random weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLWan
from diffusers.video_processor import VideoProcessor
from PIL import Image
from torch import Tensor

from diffuserve.models.wan.vae_blocks import FrameCache
from diffuserve.models.wan.video_vae import VideoVae
from support.wan_vae import TINY, WAN_21, WAN_22, make_wan_vae, save_wan_vae

CPU = torch.device("cpu")
ALL = pytest.mark.parametrize("config", [WAN_21, WAN_22, TINY], ids=["wan-2.1", "wan-2.2", "tiny"])


def load(
    config: dict[str, Any], folder: Path, dtype: torch.dtype = torch.float32
) -> tuple[AutoencoderKLWan, VideoVae]:
    reference = make_wan_vae(config, dtype)
    return reference, VideoVae(save_wan_vae(reference, folder), CPU, dtype)


def latents_of(frames: int, rows: int = 3, columns: int = 5, seed: int = 1) -> Tensor:
    return torch.randn(1, 4, frames, rows, columns, generator=torch.Generator().manual_seed(seed))


def pixels_of(vae: VideoVae, frames: int = 1, seed: int = 2) -> Tensor:
    size = (2 * vae.config.scale, 3 * vae.config.scale)
    pixels = torch.rand(1, 3, frames, *size, generator=torch.Generator().manual_seed(seed))
    return pixels * 2 - 1


def scaled(reference: AutoencoderKLWan, latents: Tensor) -> Tensor:
    mean, std = (
        torch.tensor(values).view(1, -1, 1, 1, 1).to(latents.dtype)
        for values in (reference.config.latents_mean, reference.config.latents_std)
    )
    return latents / (1.0 / std) + mean


def normalised(reference: AutoencoderKLWan, latents: Tensor) -> Tensor:
    mean, std = (
        torch.tensor(values).view(1, -1, 1, 1, 1)
        for values in (reference.config.latents_mean, reference.config.latents_std)
    )
    return (latents - mean) * (1.0 / std)


def decode_tensors(vae: VideoVae, latents: Tensor) -> list[Tensor]:
    """Return the pixels of each chunk, (frames, height, width, 3), before they are rounded."""
    cache: FrameCache = {}
    frames = scaled_frames(vae, latents)
    return [vae.decoder(frame, cache) for frame in frames]


def scaled_frames(vae: VideoVae, latents: Tensor) -> list[Tensor]:
    mean, std = (
        torch.tensor(values).view(1, -1, 1, 1) for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    return [frame / (1.0 / std) + mean for frame in latents.unbind(2)]


def wanted_pixels(reference: AutoencoderKLWan, latents: Tensor) -> Tensor:
    pixels: Tensor = reference.decode(scaled(reference, latents)).sample[0]
    return pixels.permute(1, 2, 3, 0)


@ALL
@torch.inference_mode()
def test_the_chunks_of_a_clip_equal_the_references_decode(config: dict[str, Any], tmp_path: Path) -> None:
    reference, vae = load(config, tmp_path)
    latents = latents_of(5)
    chunks = decode_tensors(vae, latents)
    assert [len(chunk) for chunk in chunks] == [1, 4, 4, 4, 4]
    wanted = wanted_pixels(reference, latents)
    assert wanted.std() > 0.1
    torch.testing.assert_close(torch.cat(chunks), wanted, atol=1e-5, rtol=0)


@ALL
@torch.inference_mode()
def test_frames_leave_as_diffusers_makes_them(config: dict[str, Any], tmp_path: Path) -> None:
    reference, vae = load(config, tmp_path)
    latents = latents_of(3)
    video = reference.decode(scaled(reference, latents)).sample
    wanted = VideoProcessor().postprocess_video(video, output_type="pil")[0]
    found = [frame for chunk in vae.decode_chunks(latents) for frame in chunk]
    assert [frame.size for frame in found] == [frame.size for frame in wanted]
    assert max(level_difference(*pair) for pair in zip(found, wanted, strict=True)) <= 1


def level_difference(found: Image.Image, wanted: Image.Image) -> int:
    return int(np.abs(np.asarray(found, dtype=int) - np.asarray(wanted, dtype=int)).max())


@ALL
@torch.inference_mode()
def test_encoded_images_and_clips_equal_the_references(config: dict[str, Any], tmp_path: Path) -> None:
    reference, vae = load(config, tmp_path)
    pixels = pixels_of(vae)
    wanted = normalised(reference, reference.encode(pixels).latent_dist.mode())
    torch.testing.assert_close(vae.encode_image(pixels[:, :, 0]), wanted, atol=1e-5, rtol=0)
    clip = torch.cat([pixels, torch.zeros_like(pixels).expand(-1, -1, 16, -1, -1)], dim=2)
    wanted = normalised(reference, reference.encode(clip).latent_dist.mode())
    found = vae.encode_clip(pixels[:, :, 0], num_frames=17)
    assert found.shape == wanted.shape == (1, 4, 5, 2, 3)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
