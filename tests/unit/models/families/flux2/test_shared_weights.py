"""Ranks that share FLUX.2's weights draw what one rank draws, and each has its part of them alone."""

from pathlib import Path

import pytest
import torch

from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.families.flux2.config import Flux2Config
from diffuserve.models.families.flux2.transformer import Flux2Transformer
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.parallel.plan import ParallelPlan
from diffuserve.parallel.ranks import Ranks, TensorRanks
from diffuserve.testing.flux2_checkpoints import write_flux2_checkpoint
from support.forked_ranks import run_on_ranks
from support.shared_drawing import CPU, Drawn, draw, num_bytes, psnr

SIZES = [(64, 64, 3, 1), (96, 48, 4, 2), (128, 80, 2, 1)]
REQUESTS = [
    GenerationParams(
        prompt=f"a red circle {number}",
        width=width,
        height=height,
        num_inference_steps=steps,
        num_images=images,
        guidance_scale=1.0 + number,
        max_sequence_length=64,
        image=InputImage.blank(64, 80) if number == 1 else None,
    )
    for number, (width, height, steps, images) in enumerate(SIZES)
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    heads = {"num_key_value_heads": 4}
    return str(write_flux2_checkpoint(tmp_path_factory.mktemp("flux2"), kind="base", text_encoder=heads))


@pytest.fixture(scope="module")
def alone(checkpoint: str) -> Drawn:
    return draw(checkpoint, REQUESTS)


@pytest.mark.parametrize(
    ("text", "most"),
    [
        # Both at once do what each does.
        pytest.param("tensor=2", 0.6, marks=pytest.mark.slow),
        pytest.param("sequence=2", 1.0, marks=pytest.mark.slow),
        ("tensor=2,sequence=2", 0.6),
    ],
)
def test_ranks_draw_what_one_does(
    text: str, most: float, checkpoint: str, alone: Drawn, tmp_path: Path
) -> None:
    """Requests of several sizes, prompts and steps, guided and not, one with a reference, in one pass."""
    plan = ParallelPlan.parse(text)

    def program(ranks: Ranks) -> Drawn:
        torch.manual_seed(ranks.index)
        return draw(checkpoint, REQUESTS, ranks)

    for drawn in run_on_ranks(program, plan.num_ranks, tmp_path / "store", plan):
        assert min(map(psnr, drawn.latents, alone.latents)) >= 80
        shares = {name: num / alone.weight_bytes[name] for name, num in drawn.weight_bytes.items()}
        assert shares["Flux2Transformer"] <= most
        assert (shares["QwenModel"] < 1) == ("tensor" in text), "its table of tokens is whole on each rank"


class OneOfTwo(TensorRanks):
    """The first of two ranks, which exchanges nothing."""

    def __init__(self) -> None:
        self.index, self.size = 0, 2


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        (
            Flux2Config(num_layers=5, num_single_layers=20, num_attention_heads=24, joint_attention_dim=7680),
            3.9,
        ),
        (Flux2Config(), 32.2),
    ],
)
def test_one_of_two_ranks_has_little_more_than_half(config: Flux2Config, billions: float) -> None:
    """The shapes are those of klein 4B, but for its guidance, and of dev; nothing is allocated."""
    with torch.device("meta"):
        transformer = Flux2Transformer(config, choose_kernel(CPU, torch.float32))
        whole = num_bytes(transformer)
        transformer.share_weights(OneOfTwo())
    assert round(whole / 4e9, 1) == billions
    assert num_bytes(transformer) / whole < 0.53
