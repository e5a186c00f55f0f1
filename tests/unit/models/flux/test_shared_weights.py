"""Ranks that share FLUX.1's weights draw what one rank draws, and each has its part of them alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.base import DenoiseInput, PackedPipeline
from diffuserve.models.flux.config import FluxConfig
from diffuserve.models.flux.pipeline import FluxPipeline
from diffuserve.models.flux.transformer import FluxTransformer
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.registry import load_pipeline
from diffuserve.models.text.t5 import T5Encoder, shard_t5
from diffuserve.models.text.t5_config import T5Config
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.parallel.plan import ParallelPlan
from diffuserve.parallel.ranks import Ranks, TensorRanks
from diffuserve.testing.checkpoints import write_flux_checkpoint
from support.forked_ranks import run_on_ranks

CPU = torch.device("cpu")
SIZES = [(64, 64, 3, 1, 16), (96, 48, 4, 2, 16), (128, 80, 2, 1, 24), (48, 64, 3, 1, 8)]
REQUESTS = [
    GenerationParams(
        prompt=f"a red circle {number}",
        width=width,
        height=height,
        num_inference_steps=steps,
        num_images=images,
        max_sequence_length=length,
        guidance_scale=1.5 + number,
    )
    for number, (width, height, steps, images, length) in enumerate(SIZES)
]


@dataclass(frozen=True)
class Drawn:
    """Images of a rank, and the bytes of the weights that it holds and of the files that it has read."""

    images: list[Tensor]
    weight_bytes: dict[str, int]
    read_bytes: int
    description: dict[str, str]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two blocks of each kind, guidance, biases, four heads in the transformer and in T5."""
    folder = tmp_path_factory.mktemp("flux")
    t5 = {"num_heads": 4, "num_layers": 2}
    return str(write_flux_checkpoint(folder, kind="dev", num_files=2, text_encoder_2=t5))


@pytest.fixture(scope="module")
def alone(checkpoint: str) -> Drawn:
    return draw(checkpoint, None)


def draw(model: str, ranks: Ranks | None, dtype: torch.dtype = torch.float32) -> Drawn:
    """Load a model and draw all requests together; they end at different steps."""
    sizes: list[int] = []
    pipeline = load_pipeline(model, LoadPlan(CPU, dtype, ranks=ranks, on_read=sizes.append))
    assert isinstance(pipeline, FluxPipeline)
    parts = {"transformer": pipeline.transformer, "t5": pipeline.text_encoder.t5}
    weight_bytes = {name: num_bytes(module) for name, module in parts.items()}
    return Drawn(generate(pipeline), weight_bytes, sum(sizes), dict(pipeline.describe()))


@torch.inference_mode()
def generate(pipeline: PackedPipeline) -> list[Tensor]:
    params = [pipeline.spec.resolve(each, seed=seed) for seed, each in enumerate(REQUESTS)]
    conditioning = pipeline.encode(params)
    latents = []
    for request, encoded in zip(params, conditioning, strict=True):
        generators = [torch.Generator().manual_seed(7 + image) for image in range(request.num_images)]
        latents.append(pipeline.init_latents(request, encoded, generators).latents)
    for step in range(max(request.num_inference_steps or 0 for request in params)):
        going = [i for i, request in enumerate(params) if step < (request.num_inference_steps or 0)]
        at = {i: pipeline.schedule(params[i]).at(step) for i in going}
        batch = [DenoiseInput(params[i], conditioning[i], latents[i], at[i].timestep) for i in going]
        for i, prediction in zip(going, pipeline.denoise(batch), strict=True):
            latents[i], _ = pipeline.sampler(params[i]).step(latents[i], prediction, at[i], (), None)
    return latents


def num_bytes(module: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())


def psnr(ours: Tensor, expected: Tensor) -> float:
    """Return how near latents are, in dB of their range."""
    error = (ours.double() - expected.double()).square().mean()
    peak = expected.double().max() - expected.double().min()
    return float(10 * torch.log10(peak.square() / error.clamp(min=1e-30)))


@pytest.mark.parametrize(
    ("text", "most"), [("tensor=2", 0.6), ("tensor=4", 0.35), ("tensor=2,sequence=2", 0.6)]
)
def test_ranks_that_share_the_weights_draw_what_one_does(
    text: str, most: float, checkpoint: str, alone: Drawn, tmp_path: Path
) -> None:
    """Requests of several sizes, lengths and steps in one pass; prompts are encoded together as well."""
    plan = ParallelPlan.parse(text)

    def program(ranks: Ranks) -> Any:
        torch.manual_seed(ranks.index)
        drawn = draw(checkpoint, ranks)
        return (
            [each.tolist() for each in drawn.images],
            drawn.weight_bytes,
            drawn.read_bytes,
            drawn.description,
        )

    for images, weight_bytes, read_bytes, description in run_on_ranks(
        program, plan.num_ranks, tmp_path / "store", plan
    ):
        for ours, expected in zip(images, alone.images, strict=True):
            assert psnr(torch.tensor(ours), expected) >= 80
        assert weight_bytes["transformer"] <= most * alone.weight_bytes["transformer"]
        saved = sum(alone.weight_bytes.values()) - sum(weight_bytes.values())
        assert alone.read_bytes - read_bytes == saved, "nothing is read that is not kept"
        assert description["parallel"] == text


class OneOfTwo(TensorRanks):
    """The first of two ranks, which exchanges nothing."""

    def __init__(self) -> None:
        self.index, self.size = 0, 2


def test_one_of_two_ranks_has_little_more_than_half_of_flux() -> None:
    """The shapes are those of FLUX.1 and of T5-XXL; nothing is allocated."""
    with torch.device("meta"):
        config = T5Config(
            d_model=4096, d_ff=10240, num_heads=64, num_layers=24, feed_forward_proj="gated-gelu"
        )
        modules = [
            FluxTransformer(FluxConfig(guidance_embeds=True), choose_kernel(CPU, torch.float32)),
            T5Encoder(config),
        ]
        whole = [num_bytes(module) for module in modules]
        transformer, t5 = modules
        assert isinstance(transformer, FluxTransformer)
        transformer.share_weights(OneOfTwo())
        shard_t5(t5, OneOfTwo())
    assert [round(total / 4e9, 1) for total in whole] == [11.9, 4.8]
    shares = [num_bytes(module) / total for module, total in zip(modules, whole, strict=True)]
    assert shares[0] < 0.51
    assert shares[1] < 0.52
