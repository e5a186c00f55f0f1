"""Ranks that share an image over Gloo decode what one does, and each has its part of the features alone."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.autoencoder.config import AutoencoderConfig
from diffuserve.models.autoencoder.decoder import ImageDecoder
from diffuserve.models.families.flux.pipeline import FluxPipeline
from diffuserve.models.layers.strips import strip_sizes
from diffuserve.models.layers.strips.slabs import Slabs
from diffuserve.models.registry import load_pipeline
from diffuserve.models.video_autoencoder.blocks import CausalConv
from diffuserve.models.video_autoencoder.config import VideoVaeConfig
from diffuserve.models.video_autoencoder.decoder import VideoDecoder
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.parallel.ranks import Ranks
from diffuserve.testing.checkpoints import write_flux_checkpoint
from support.forked_ranks import run_on_ranks
from support.live_tensors import LiveTensors

Decode = Callable[[Slabs], Tensor]
M = TypeVar("M", bound=nn.Module)


def kl(dtype: torch.dtype = torch.float32) -> Decode:
    config = AutoencoderConfig(
        block_out_channels=(8, 16, 16), latent_channels=4, layers_per_block=2, norm_num_groups=4
    )
    decoder = filled(ImageDecoder(config), dtype)
    latents = random(1, 4, 33, 16).to(dtype=dtype, memory_format=torch.channels_last)
    return lambda slabs: decoder.decode_in_strips(latents, slabs)


def qwen_image() -> Decode:
    decoder = filled(VideoDecoder(VideoVaeConfig(base_dim=8, z_dim=4)), torch.float32)
    for layer in decoder.modules():
        if isinstance(layer, CausalConv):
            layer.prepare()
    latents = random(1, 4, 17, 8).to(memory_format=torch.channels_last)
    return lambda slabs: decoder.decode_in_strips(latents, None, slabs)


def filled(module: M, dtype: torch.dtype) -> M:
    torch.manual_seed(0)
    for name, parameter in module.named_parameters():
        if "gamma" in name or "norm" in name:
            nn.init.uniform_(parameter, 0.5, 1.5)
        else:
            nn.init.normal_(parameter, std=(parameter[0].numel()) ** -0.5)
    return module.to(dtype).requires_grad_(False)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def measured(decode: Decode, slabs: Slabs) -> tuple[Tensor, int]:
    with torch.inference_mode(), LiveTensors() as live:
        pixels = decode(slabs)
    return pixels, live.peak


@pytest.mark.parametrize(
    ("make", "num_ranks", "most"),
    [
        (kl, 3, 0.6),
        (qwen_image, 2, 0.7),
        pytest.param(kl, 2, 0.7, marks=pytest.mark.slow),
        pytest.param(qwen_image, 3, 0.6, marks=pytest.mark.slow),
    ],
)
def test_ranks_decode_slabs_of_an_image(
    make: Callable[[], Decode],
    num_ranks: int,
    most: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Slabs have unequal numbers of rows here."""
    monkeypatch.setattr(strip_sizes, "CPU_STRIP_SCALARS", 1 << 10)
    wanted, whole_bytes = measured(make(), Slabs())

    def program(ranks: Ranks) -> tuple[list[float], int]:
        pixels, peak = measured(make(), Slabs(ranks.sequence))
        return pixels.flatten().tolist(), peak

    for flat, peak in run_on_ranks(program, num_ranks, tmp_path / "store"):
        torch.testing.assert_close(torch.tensor(flat).view(wanted.shape), wanted, atol=1e-5, rtol=0)
        assert peak < most * whole_bytes, peak / whole_bytes


def test_ranks_exchange_rows_in_bfloat16(tmp_path: Path) -> None:
    """Where roundings fall otherwise, they are as far from the whole as a strip's are."""
    wanted = kl(torch.bfloat16)(Slabs()).float()

    def program(ranks: Ranks) -> float:
        found = kl(torch.bfloat16)(Slabs(ranks.sequence)).float()
        return float((found - wanted).square().mean() / wanted.square().mean())

    assert max(run_on_ranks(program, 2, tmp_path / "store")) < 1e-3


def test_a_pipeline_decodes_a_large_image_with_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strip_sizes, "MAX_WHOLE_PIXELS", 64 * 64)
    model = str(write_flux_checkpoint(tmp_path / "flux"))

    def program(ranks: Ranks) -> tuple[list[bytes], list[bytes], list[bool]]:
        pipeline = load_pipeline(model, LoadPlan(torch.device("cpu"), torch.float32, ranks=ranks))
        assert isinstance(pipeline, FluxPipeline)
        large, small = (
            pipeline.spec.resolve(GenerationParams(prompt="a", width=width, height=64), seed=1)
            for width in (128, 64)
        )
        latents = [random(*pipeline.latents_shape(large))]
        [[together]], [[alone]] = (
            pipeline.decode_in_slabs(latents, [large]),
            pipeline.decode(latents, [large]),
        )
        slabs = [pipeline.decodes_in_slabs(params) for params in (large, small)]
        return [image.tobytes() for image in together], [image.tobytes() for image in alone], slabs

    for together, alone, in_slabs in run_on_ranks(program, 2, tmp_path / "store"):
        levels = [torch.frombuffer(bytearray(*image), dtype=torch.uint8).int() for image in (together, alone)]
        assert (levels[0] - levels[1]).abs().max() <= 1, "what lies between two levels may round to either"
        assert in_slabs == [True, False]
