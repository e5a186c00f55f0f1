"""Frames decoded in strips of rows, beside those decoded whole, on random weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from diffuserve.models.layers.strips import strip_sizes
from diffuserve.models.layers.strips.slabs import Slabs
from diffuserve.models.video_autoencoder.blocks import CausalConv, FrameCache
from diffuserve.models.video_autoencoder.config import VideoVaeConfig
from diffuserve.models.video_autoencoder.cost import decode_bytes, image_bytes
from diffuserve.models.video_autoencoder.decoder import VideoDecoder
from diffuserve.models.video_autoencoder.video_vae import VideoVae
from diffuserve.models.weights.load_plan import LoadPlan
from support.live_tensors import LiveTensors
from support.wan_vae import TINY, WAN_21, WAN_22, make_wan_vae, save_wan_vae

CONFIGS = pytest.mark.parametrize("config", [WAN_21, WAN_22, TINY], ids=["wan-2.1", "wan-2.2", "tiny"])


def load(config: dict[str, Any], folder: Path) -> VideoVae:
    return VideoVae(save_wan_vae(make_wan_vae(config), folder), LoadPlan(torch.device("cpu"), torch.float32))


def latents_of(frames: int) -> Tensor:
    latents = torch.randn(frames, 4, 5, 4, generator=torch.Generator().manual_seed(1))
    return latents.to(memory_format=torch.channels_last)


def prepared(decoder: VideoDecoder) -> VideoDecoder:
    for layer in decoder.modules():
        if isinstance(layer, CausalConv):
            layer.prepare()
    return decoder


@CONFIGS
@pytest.mark.parametrize("strip_scalars", [1 << 10, 1 << 13])
@torch.inference_mode()
def test_a_clip_in_strips_is_the_whole_one(
    config: dict[str, Any], strip_scalars: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strip_sizes, "CPU_STRIP_SCALARS", strip_scalars)
    vae = load(config, tmp_path)
    whole: FrameCache = {}
    in_strips: FrameCache = {}
    for frame in latents_of(3).split(1):
        wanted = vae.decoder(frame, whole)
        found = vae.decoder.decode_in_strips(frame, in_strips, Slabs())
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


@CONFIGS
@torch.inference_mode()
def test_images_in_strips_are_the_whole_ones(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strip_sizes, "CPU_STRIP_SCALARS", 1 << 10)
    decoder = load(config, tmp_path).decoder
    wanted = decoder(latents_of(2), None)
    found = decoder.decode_in_strips(latents_of(2), None, Slabs())
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


TI2V_5B = VideoVaeConfig(
    decoder_base_dim=256,
    z_dim=48,
    is_residual=True,
    in_channels=12,
    out_channels=12,
    patch_size=2,
    scale_factor_spatial=16,
)


@pytest.mark.parametrize(
    ("config", "side", "num_chunks", "most_gibibytes"),
    [
        (VideoVaeConfig(), 2048, 0, 1.9),
        (VideoVaeConfig(), 1344, 2, 11.6),
        pytest.param(VideoVaeConfig(), 2048, 3, 26.4, marks=pytest.mark.slow),
        pytest.param(TI2V_5B, 2048, 3, 24.4, marks=pytest.mark.slow),
    ],
    ids=["image", "clip", "large-clip", "wan-2.2"],
)
def test_memory_in_strips_is_predicted(
    config: VideoVaeConfig, side: int, num_chunks: int, most_gibibytes: float
) -> None:
    """In bf16; whole these are 5.3, 18.3, 42.5 and 35.4 GiB. Most of a clip's are its last frames."""
    with torch.device("meta"):
        decoder = prepared(VideoDecoder(config).to(torch.bfloat16))
        cells = side // config.scale
        latents = torch.zeros(1, config.z_dim, cells, cells, dtype=torch.bfloat16)
    cache: FrameCache = {}
    with torch.inference_mode(), LiveTensors() as live:
        for _ in range(max(1, num_chunks)):
            channels_last = latents.to(memory_format=torch.channels_last)
            decoder.decode_in_strips(channels_last, cache if num_chunks else None, Slabs())
    predicted = decode_bytes(config, side, side, 2) if num_chunks else image_bytes(config, side**2, 2)
    assert live.peak < most_gibibytes * 2**30
    assert 0.99 < predicted / live.peak < 1.05
