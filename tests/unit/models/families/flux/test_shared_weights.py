"""Ranks that share FLUX.1's weights draw what one rank draws, and each has its part of them alone."""

from pathlib import Path

import pytest
import torch

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.families.flux.config import FluxConfig
from diffuserve.models.families.flux.transformer import FluxTransformer
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.text.t5 import T5Encoder, shard_t5
from diffuserve.models.text.t5_config import T5Config
from diffuserve.parallel.plan import ParallelPlan
from diffuserve.parallel.ranks import Ranks, TensorRanks
from diffuserve.testing.checkpoints import write_flux_checkpoint
from support.forked_ranks import run_on_ranks
from support.shared_drawing import CPU, Drawn, draw, num_bytes, psnr

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


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two blocks of each kind, guidance, biases, four heads in the transformer and in T5."""
    folder = tmp_path_factory.mktemp("flux")
    t5 = {"num_heads": 4, "num_layers": 2}
    return str(write_flux_checkpoint(folder, kind="dev", num_files=2, text_encoder_2=t5))


@pytest.fixture(scope="module")
def alone(checkpoint: str) -> Drawn:
    return draw(checkpoint, REQUESTS)


@pytest.mark.parametrize(
    ("text", "most"),
    [
        # What shares tokens as well shares weights in the same way.
        pytest.param("tensor=2", 0.6, marks=pytest.mark.slow),
        pytest.param("tensor=4", 0.35, marks=pytest.mark.slow),
        ("tensor=2,sequence=2", 0.6),
    ],
)
def test_ranks_that_share_the_weights_draw_what_one_does(
    text: str, most: float, checkpoint: str, alone: Drawn, tmp_path: Path
) -> None:
    """Requests of several sizes, lengths and steps in one pass; prompts are encoded together as well."""
    plan = ParallelPlan.parse(text)

    def program(ranks: Ranks) -> Drawn:
        torch.manual_seed(ranks.index)
        return draw(checkpoint, REQUESTS, ranks)

    for drawn in run_on_ranks(program, plan.num_ranks, tmp_path / "store", plan):
        assert min(map(psnr, drawn.latents, alone.latents)) >= 80
        transformer = "FluxTransformer"
        assert drawn.weight_bytes[transformer] <= most * alone.weight_bytes[transformer]
        saved = sum(alone.weight_bytes.values()) - sum(drawn.weight_bytes.values())
        assert alone.read_bytes - drawn.read_bytes == saved, "nothing is read that is not kept"
        assert drawn.description["parallel"] == text


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
        kernel = choose_kernel(CPU, torch.float32)
        transformer, t5 = FluxTransformer(FluxConfig(guidance_embeds=True), kernel), T5Encoder(config)
        whole = [num_bytes(transformer), num_bytes(t5)]
        transformer.share_weights(OneOfTwo())
        shard_t5(t5, OneOfTwo())
    assert [round(total / 4e9, 1) for total in whole] == [11.9, 4.8]
    shares = [num_bytes(transformer) / whole[0], num_bytes(t5) / whole[1]]
    assert shares[0] < 0.51
    assert shares[1] < 0.505
