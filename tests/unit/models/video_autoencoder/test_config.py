"""The configs of Wan's autoencoders, and the costs that follow from them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLWan
from torch.utils.flop_counter import FlopCounterMode

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.video_autoencoder import cost as vae_cost
from diffuserve.models.video_autoencoder.config import VideoVaeConfig
from diffuserve.models.video_autoencoder.decoder import VideoDecoder, load_decoder
from diffuserve.models.video_autoencoder.encoder import VideoEncoder
from diffuserve.models.video_autoencoder.video_vae import VideoVae
from diffuserve.models.weights.load_plan import LoadPlan
from support.wan_vae import TINY, WAN_21, WAN_22, make_wan_vae, save_wan_vae

TI2V_5B: dict[str, Any] = {
    "base_dim": 160,
    "decoder_base_dim": 256,
    "z_dim": 48,
    "is_residual": True,
    "in_channels": 12,
    "out_channels": 12,
    "patch_size": 2,
    "scale_factor_spatial": 16,
    "latents_mean": [0.0] * 48,
    "latents_std": [1.0] * 48,
}


def read(values: dict[str, Any], folder: Path) -> VideoVaeConfig:
    (folder / "vae").mkdir(exist_ok=True)
    (folder / "vae" / "config.json").write_text(json.dumps(values))
    return VideoVaeConfig.read(ModelFolder(folder))


@pytest.mark.parametrize("values", [{}, TI2V_5B, TINY], ids=["wan-2.1", "ti2v-5b", "tiny"])
def test_parameters_are_named_and_shaped_as_in_the_reference(values: dict[str, Any], tmp_path: Path) -> None:
    with torch.device("meta"):
        reference = AutoencoderKLWan(**values)
        config = read(dict(reference.config), tmp_path)
        parts = (VideoDecoder(config), VideoEncoder(config))
    shapes = {name: tensor.shape for part in parts for name, tensor in part.named_parameters()}
    assert shapes == {name: tensor.shape for name, tensor in reference.named_parameters()}
    assert config.scale == reference.config.scale_factor_spatial


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn_scales": [0.5]}, r"attn_scales=\[0\.5\]: attention outside"),
        ({"temperal_downsample": [True, True]}, "must have one value fewer than dim_mult"),
        ({"temperal_downsample": [True, True, True]}, "temperal_downsample makes it 8: only 4"),
        ({"scale_factor_temporal": 8}, "scale_factor_temporal=8"),
        ({"scale_factor_spatial": 16}, "scale_factor_spatial=16, but dim_mult and patch_size make it 8"),
        ({"patch_size": 2, "scale_factor_spatial": 16}, "in_channels=3, but patch_size=2 makes it 12"),
        ({"latents_mean": [0.0]}, "latents_mean has 1 values; z_dim=4 channels need one each"),
        ({"latents_std": [1.0, 1.0, 1.0, 0.0]}, "latents_std"),
        ({"base_dim": 0}, "base_dim=0"),
        ({"num_res_blocks": "two"}, "num_res_blocks='two'"),
        ({"is_residual": True, "dim_mult": [1, 3, 5, 7]}, "cannot average 8 channels to 24"),
    ],
)
def test_what_is_not_supported_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match=rf"vae/config\.json: .*{message}"):
        read(WAN_21 | changes, tmp_path)


def test_weights_of_another_shape_are_refused_by_name(tmp_path: Path) -> None:
    reference = make_wan_vae(WAN_21)
    folder = save_wan_vae(reference, tmp_path)
    reference.decoder.conv_in = torch.nn.Conv3d(4, 40, 3)
    save_wan_vae(reference, tmp_path)
    with pytest.raises(InvalidModel, match=r"decoder\.conv_in\.bias has shape"):
        load_decoder(
            VideoVaeConfig.read(folder), folder.weights("vae"), LoadPlan(torch.device("cpu"), torch.float32)
        )


@pytest.mark.parametrize("values", [WAN_21, WAN_22, TINY], ids=["wan-2.1", "wan-2.2", "tiny"])
def test_operations_are_those_that_torch_counts(values: dict[str, Any], tmp_path: Path) -> None:
    vae = VideoVae(save_wan_vae(make_wan_vae(values), tmp_path), LoadPlan(torch.device("cpu"), torch.float32))
    size = (4 * vae.config.scale, 3 * vae.config.scale)
    for num_frames in (1, 9):
        latents = torch.zeros(1, 4, vae.config.latent_frames(num_frames), 3, 4)
        with FlopCounterMode(display=False) as counter:
            assert sum(map(len, vae.decode_chunks(latents))) == num_frames
        predicted = vae_cost.decode_operations(vae.config, *size, num_frames)
        assert predicted == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_costs_of_the_published_models(tmp_path: Path) -> None:
    """Figures of two checkpoints at their usual sizes, as diffusers' own decoder has them."""
    small, large = read({}, tmp_path), read(TI2V_5B, tmp_path)
    assert vae_cost.cache_bytes(small, 832, 480, item_bytes=2) == pytest.approx(1.9e9, rel=0.02)
    assert vae_cost.cache_bytes(large, 1280, 704, item_bytes=2) == pytest.approx(3.2e9, rel=0.02)
    for config, width, height, trillions in ((small, 832, 480, 13.6), (large, 1280, 704, 66)):
        later = vae_cost.decode_operations(config, width, height, 5)
        first = vae_cost.decode_operations(config, width, height, 1)
        assert later - first == pytest.approx(trillions * 1e12, rel=0.02)
        assert first < (later - first) / 7, "one frame of four, and nothing before it"
