"""Ranks that share Wan's weights, tokens and passes draw what one rank draws."""

from pathlib import Path

import pytest
import torch

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.families.wan.config import WanTransformerConfig
from diffuserve.models.families.wan.transformer import WanTransformer
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.text.t5 import T5Encoder, shard_t5
from diffuserve.models.text.t5_config import Umt5Config
from diffuserve.parallel.plan import ParallelPlan
from diffuserve.parallel.ranks import Ranks, TensorRanks
from diffuserve.testing.wan_checkpoints import WanKind, write_wan_checkpoint
from support.forked_ranks import run_on_ranks
from support.lockstep_program import striped
from support.shared_drawing import CPU, Drawn, draw, num_bytes, psnr

# width, height, frames, steps, images, guidance
SHAPES = [(32, 32, 5, 2, 1, 4.0), (48, 32, 1, 1, 3, 1.0), (32, 64, 9, 2, 1, 1.0), (16, 16, 1, 2, 2, 2.5)]
Models = dict[str, tuple[str, list[GenerationParams], Drawn]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Clips and images of several sizes and lengths, guided and not; some begin with a given image."""
    kinds: tuple[WanKind, ...] = ("a14b", "i2v")
    found: Models = {}
    for kind in kinds:
        model = str(write_wan_checkpoint(tmp_path_factory.mktemp("model") / kind, kind=kind, num_files=2))
        requests = [
            GenerationParams(
                prompt=f"a red circle {number}" * (number + 1),
                width=width,
                height=height,
                num_frames=frames,
                num_inference_steps=steps,
                num_images=images,
                guidance_scale=guidance,
                image=striped(width, height, "RGB") if kind == "i2v" else None,
            )
            for number, (width, height, frames, steps, images, guidance) in enumerate(SHAPES)
        ]
        found[kind] = (model, requests, draw(model, requests))
    return found


@pytest.mark.parametrize(
    ("kind", "text", "most"),
    [
        ("i2v", "tensor=2", 0.6),
        pytest.param("a14b", "cfg=2", 1.0, marks=pytest.mark.slow),
        pytest.param("a14b", "tensor=4", 0.4, marks=pytest.mark.slow),
        pytest.param("a14b", "tensor=2,sequence=2", 0.6, marks=pytest.mark.slow),
        pytest.param("i2v", "cfg=2,sequence=2", 1.0, marks=pytest.mark.slow),
        ("a14b", "cfg=2,tensor=2", 0.6),
    ],
)
def test_ranks_draw_what_one_does(kind: str, text: str, most: float, models: Models, tmp_path: Path) -> None:
    model, requests, alone = models[kind]
    plan = ParallelPlan.parse(text)

    def program(ranks: Ranks) -> Drawn:
        torch.manual_seed(ranks.index)
        return draw(model, requests, ranks)

    for drawn in run_on_ranks(program, plan.num_ranks, tmp_path / "store", plan):
        assert min(map(psnr, drawn.latents, alone.latents)) >= 80
        for name in ("WanTransformer", "T5Encoder"):
            assert drawn.weight_bytes[name] <= most * alone.weight_bytes[name]
        saved = sum(alone.weight_bytes.values()) - sum(drawn.weight_bytes.values())
        assert alone.read_bytes - drawn.read_bytes == saved, "nothing is read that is not kept"
        assert drawn.description["parallel"] == text


class OneOfSeveral(TensorRanks):
    """The first of several ranks, which exchanges nothing."""

    def __init__(self, size: int) -> None:
        self.index, self.size = 0, size


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_a_rank_has_little_more_than_its_part_of_14b_and_of_umt5(num_ranks: int) -> None:
    """The shapes are those of Wan 2.1's 14B and of UMT5-XXL; nothing is allocated."""
    with torch.device("meta"):
        umt5 = Umt5Config(vocab_size=256_384, d_model=4096, d_ff=10240, num_heads=64, num_layers=24)
        kernel = choose_kernel(CPU, torch.float32)
        transformer, encoder = WanTransformer(WanTransformerConfig(), kernel), T5Encoder(umt5)
        whole = num_bytes(transformer), num_bytes(encoder)
        transformer.share_weights(OneOfSeveral(num_ranks))
        shard_t5(encoder, OneOfSeveral(num_ranks))
    assert [round(total / 4e9, 1) for total in whole] == [14.3, 5.7]
    assert num_bytes(transformer) < (1 / num_ranks + 0.005) * whole[0]
    assert num_bytes(encoder) < (1 / num_ranks + 0.001) * whole[1]
