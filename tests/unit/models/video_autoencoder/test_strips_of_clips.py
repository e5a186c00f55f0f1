"""Frames decoded in strips of rows, beside those decoded whole, on random weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from diffuserve.models.layers import strips
from diffuserve.models.layers.bands import Bands
from diffuserve.models.video_autoencoder.blocks import FrameCache
from diffuserve.models.video_autoencoder.video_vae import VideoVae
from diffuserve.models.weights.load_plan import LoadPlan
from support.wan_vae import TINY, WAN_21, WAN_22, make_wan_vae, save_wan_vae

CONFIGS = pytest.mark.parametrize("config", [WAN_21, WAN_22, TINY], ids=["wan-2.1", "wan-2.2", "tiny"])


def load(config: dict[str, Any], folder: Path) -> VideoVae:
    return VideoVae(save_wan_vae(make_wan_vae(config), folder), LoadPlan(torch.device("cpu"), torch.float32))


def latents_of(frames: int) -> Tensor:
    latents = torch.randn(frames, 4, 5, 4, generator=torch.Generator().manual_seed(1))
    return latents.to(memory_format=torch.channels_last)


@CONFIGS
@pytest.mark.parametrize("strip_scalars", [1, 1 << 13, 1 << 24])
@torch.inference_mode()
def test_a_clip_in_strips_is_the_whole_one(
    config: dict[str, Any], strip_scalars: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strips, "_CACHED_STRIP_SCALARS", strip_scalars)
    vae = load(config, tmp_path)
    whole: FrameCache = {}
    in_strips: FrameCache = {}
    for frame in latents_of(3).split(1):
        wanted = vae.decoder(frame, whole)
        found = vae.decoder.decode_in_strips(frame, in_strips, Bands())
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


@CONFIGS
@torch.inference_mode()
def test_images_in_strips_are_the_whole_ones(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strips, "_CACHED_STRIP_SCALARS", 1 << 10)
    decoder = load(config, tmp_path).decoder
    wanted = decoder(latents_of(2), None)
    found = decoder.decode_in_strips(latents_of(2), None, Bands())
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
