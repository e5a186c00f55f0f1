"""Ranks that share weights, tokens and passes of packed image models draw what one rank draws."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.families.qwen_image.config import QwenImageConfig
from diffuserve.models.families.qwen_image.transformer import QwenImageTransformer
from diffuserve.models.layers.joint.packing import Grid
from diffuserve.parallel.plan import ParallelPlan
from diffuserve.parallel.ranks import Ranks
from diffuserve.testing.flux2_checkpoints import write_flux2_checkpoint
from diffuserve.testing.qwen_image_checkpoints import write_qwen_image_checkpoint
from diffuserve.testing.z_image_checkpoints import write_z_image_checkpoint
from support.forked_ranks import run_on_ranks
from support.packed_step import QWEN_IMAGE, shared_step
from support.rank_step import count_rank
from support.shared_drawing import Drawn, draw, psnr

SIZES = [(64, 64, 2, 3), (96, 48, 3, 1), (128, 64, 2, 1)]
FAMILIES: dict[str, Callable[[Path], Path]] = {
    "flux2": lambda folder: write_flux2_checkpoint(folder, kind="base"),
    "qwen-image": write_qwen_image_checkpoint,
    "z-image": write_z_image_checkpoint,
}
Models = dict[str, tuple[str, Drawn]]


def requests() -> list[GenerationParams]:
    """Requests of several sizes, prompts and steps; the second one is not guided."""
    return [
        GenerationParams(
            prompt=f"a red circle {number}" * (number + 1),
            width=width,
            height=height,
            num_inference_steps=steps,
            num_images=images,
            guidance_scale=3.0 * (number != 1),
        )
        for number, (width, height, steps, images) in enumerate(SIZES)
    ]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folders = {name: str(write(tmp_path_factory.mktemp("model") / name)) for name, write in FAMILIES.items()}
    return {name: (folder, draw(folder, requests())) for name, folder in folders.items()}


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("flux2", "cfg=2,tensor=2"),
        ("qwen-image", "cfg=2"),
        ("z-image", "tensor=2"),
        *(
            pytest.param(family, text, marks=pytest.mark.slow)
            for family in FAMILIES
            for text in ("cfg=2", "sequence=2", "tensor=2", "tensor=2,sequence=2", "cfg=2,sequence=2")
        ),
    ],
)
def test_ranks_draw_what_one_does(family: str, text: str, models: Models, tmp_path: Path) -> None:
    folder, alone = models[family]
    plan = ParallelPlan.parse(text)

    def program(ranks: Ranks) -> Drawn:
        torch.manual_seed(ranks.index)
        return draw(folder, requests(), ranks)

    for drawn in run_on_ranks(program, plan.num_ranks, tmp_path / "store", plan):
        assert min(map(psnr, drawn.latents, alone.latents)) >= 80
        has_less = {name for name, size in drawn.weight_bytes.items() if size < alone.weight_bytes[name]}
        assert bool(has_less) == plan.is_sharded
        saved = sum(alone.weight_bytes.values()) - sum(drawn.weight_bytes.values())
        assert alone.read_bytes - drawn.read_bytes == saved, "nothing is read that is not kept"


def test_a_double_block_adds_up_four_times_and_exchanges_tokens_twice() -> None:
    """Attention and feed-forward of images and of texts; queries, keys and values, and their results."""
    config = QwenImageConfig(num_layers=2, num_attention_heads=8)
    model = replace(QWEN_IMAGE, config=config, make=partial(QwenImageTransformer, config))
    step = shared_step(model, model.shapes(1, Grid(16, 16)))
    counted = count_rank(step, ParallelPlan(cfg=2, tensor=2, sequence=2)).exchanges
    assert counted["allreduce_"].calls == 4 * config.num_layers
    assert counted["alltoall_base_"].calls == 2 * config.num_layers
    assert counted["allgather_"].calls == 3, "factors, the velocities of all tokens, and of both passes"
