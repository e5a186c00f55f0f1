"""Ranks that share weights and tokens draw requests of FLUX.1 with ControlNets as one rank does."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from diffuserve.domain.requests.control_use import ControlUse
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.folders.companions import companions_of
from diffuserve.parallel.plan import ParallelPlan
from diffuserve.parallel.ranks import Ranks
from diffuserve.testing.checkpoints import write_flux_checkpoint
from diffuserve.testing.controlnet_checkpoints import write_flux_controlnet
from support.forked_ranks import run_on_ranks
from support.photos import photo
from support.shared_drawing import Drawn, draw, psnr

EDGES, DEPTH = photo(1, 64, 64), photo(2, 48, 80)
USES = (
    (),
    (ControlUse("edges", EDGES),),
    (ControlUse("many", DEPTH, 0.7, mode=2), ControlUse("edges", DEPTH, 0.5, end=0.5)),
)


@pytest.mark.parametrize("text", ["sequence=2", pytest.param("sequence=2,tensor=2", marks=pytest.mark.slow)])
def test_ranks_draw_what_one_does(text: str, tmp_path: Path) -> None:
    model, plan = write_flux_checkpoint(tmp_path / "model", kind="dev", seed=5), ParallelPlan.parse(text)
    many = write_flux_controlnet(tmp_path / "many", model, seed=2, num_mode=3, num_layers=1)
    nets = companions_of({"edges": write_flux_controlnet(tmp_path / "edges", model, seed=1), "many": many})
    wanted = [
        GenerationParams(
            prompt="a star", width=64, height=48 + 16 * n, num_inference_steps=2 + n, controls=uses
        )
        for n, uses in enumerate(USES)
    ]
    alone = draw(str(model), wanted, companions=nets)
    plain = draw(str(model), [replace(each, controls=None) for each in wanted], companions=nets)
    changed = [psnr(*pair) < 40 for pair in zip(alone.latents, plain.latents, strict=True)]
    assert changed == [bool(uses) for uses in USES]

    def program(ranks: Ranks) -> Drawn:
        torch.manual_seed(ranks.index)
        return draw(str(model), wanted, ranks, companions=nets)

    for drawn in run_on_ranks(program, plan.num_ranks, tmp_path / "store", plan):
        assert min(map(psnr, drawn.latents, alone.latents)) >= 80
