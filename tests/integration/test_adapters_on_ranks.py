"""Ranks that share weights, tokens and passes draw requests with adapters as one rank does."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from diffuserve.domain.errors import DiffuserveError
from diffuserve.domain.requests.adapter_use import AdapterUse
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine.loading import adapter_pool
from diffuserve.engine_process.ranks.lockstep import FollowerRank, LeadRunner, rank_parts
from diffuserve.engine_process.ranks.rank_adapters import RankAdapters
from diffuserve.models.layers.adapted.lora_pair import Components
from diffuserve.models.pipelines.base import packed
from diffuserve.models.registry import load_pipeline
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.parallel.plan import ParallelPlan
from diffuserve.parallel.ranks import Ranks
from diffuserve.testing.checkpoints import write_flux_checkpoint
from diffuserve.testing.flux2_checkpoints import write_flux2_checkpoint
from diffuserve.testing.qwen_image_checkpoints import write_qwen_image_checkpoint
from diffuserve.testing.wan_checkpoints import write_wan_checkpoint
from diffuserve.testing.z_image_checkpoints import write_z_image_checkpoint
from support.adapters import sources_of
from support.forked_ranks import run_on_ranks
from support.lora_pairs import random_pairs
from support.shared_drawing import CPU, Drawn, draw, psnr

WRITERS: Mapping[str, Callable[[Path], Path]] = {
    "flux": lambda folder: write_flux_checkpoint(folder, kind="dev", seed=5),
    "flux2": lambda folder: write_flux2_checkpoint(folder, seed=5),
    "z_image": lambda folder: write_z_image_checkpoint(folder, seed=5),
    "qwen_image": lambda folder: write_qwen_image_checkpoint(folder, seed=5),
    "wan": lambda folder: write_wan_checkpoint(folder, seed=5),
}
A, B = AdapterUse("a", 0.7), AdapterUse("b", 1.3)
USES = ((), (A,), (B, A), (B,))
SIZES = ((64, 64), (64, 96), (64, 64), (96, 64))
SLOW = pytest.mark.slow
_ONE_VALUE = 4  # bytes of the single number that each adapter says it has


def requests(family: str) -> list[GenerationParams]:
    own = [
        GenerationParams(
            prompt="a red circle" * (1 + number),
            width=width,
            height=height,
            num_inference_steps=2 + number % 2,
            adapters=uses,
        )
        for number, (uses, (width, height)) in enumerate(zip(USES, SIZES, strict=True))
    ]
    return [replace(each, num_frames=5) for each in own] if family == "wan" else own


def random_adapters(folder: Path) -> Mapping[str, Components]:
    pairs = {"a": random_pairs(folder, 4, 10), "b": random_pairs(folder, 8, 99)}
    biased = {
        name: pair._replace(bias=torch.randn(len(pair.up), generator=torch.Generator().manual_seed(3)) / 10)
        for name, pair in pairs["b"].items()
    }
    return {"a": {"transformer": pairs["a"]}, "b": {"transformer": biased}}


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("flux", "tensor=2"),
        pytest.param("z_image", "tensor=2", marks=SLOW),
        ("wan", "cfg=2,sequence=2"),
        pytest.param("wan", "tensor=2", marks=SLOW),
        pytest.param("flux", "sequence=2,tensor=2", marks=SLOW),
        pytest.param("z_image", "cfg=2,sequence=2", marks=SLOW),
        pytest.param("flux2", "tensor=2,sequence=2", marks=SLOW),
        pytest.param("qwen_image", "cfg=2,tensor=2", marks=SLOW),
    ],
)
def test_ranks_draw_what_one_does(family: str, text: str, tmp_path: Path) -> None:
    folder, plan = WRITERS[family](tmp_path / "model"), ParallelPlan.parse(text)
    wanted, adapters = requests(family), random_adapters(folder)
    alone = draw(str(folder), wanted, adapters=adapters)
    plain = draw(str(folder), [replace(each, adapters=()) for each in wanted])
    assert [psnr(*pair) < 40 for pair in zip(alone.latents, plain.latents, strict=True)] == [
        bool(uses) for uses in USES
    ]

    def program(ranks: Ranks) -> Drawn:
        torch.manual_seed(ranks.index)
        return draw(str(folder), wanted, ranks, adapters)

    for drawn in run_on_ranks(program, plan.num_ranks, tmp_path / "store", plan):
        assert min(map(psnr, drawn.latents, alone.latents)) >= 80


Readers = Mapping[str, Callable[[], Components]]


def draw_in_lockstep(
    folder: Path,
    text: str,
    wanted: Sequence[GenerationParams],
    readers_of: Callable[[Ranks], Readers],
    adapter_bytes: int = 2**30,
) -> list[str]:
    """Draw requests twice with an engine over two ranks; return what each came to."""

    def program(ranks: Ranks) -> list[str]:
        parts = rank_parts(LoadPlan(CPU).parts, ranks)
        pipeline = packed(load_pipeline(str(folder), LoadPlan(CPU, torch.float32, ranks=ranks, parts=parts)))
        own = sources_of(readers_of(ranks))
        if not ranks.is_lead:
            adapters = RankAdapters(adapter_pool(pipeline, own, adapter_bytes), own, Path)
            FollowerRank(pipeline, ranks, adapters).run()
            return []
        config = EngineConfig(num_threads=1, adapter_bytes=adapter_bytes)
        with Engine(pipeline, config, LeadRunner(pipeline, ranks), adapters=own) as engine:
            for _ in range(2):  # the group goes on
                outcomes = engine.generate(wanted, return_exceptions=True)
        return [str(each) if isinstance(each, DiffuserveError) else "drawn" for each in outcomes]

    plan = ParallelPlan.parse(text)
    told: list[str] = run_on_ranks(program, plan.num_ranks, folder.parent / f"store {text}", plan)[0]
    return told


@pytest.mark.parametrize("text", [pytest.param("sequence=2", marks=SLOW), "tensor=2"])
def test_an_adapter_that_one_rank_cannot_load_fails_its_request_alone(text: str, tmp_path: Path) -> None:
    folder = WRITERS["flux"](tmp_path / "model")
    adapters = random_adapters(folder)
    broken = {"transformer": {"no_such_layer": adapters["b"]["transformer"]["x_embedder"]}}

    def readers(ranks: Ranks) -> Readers:
        return {"a": lambda: adapters["a"], "b": lambda: adapters["b"] if ranks.is_lead else broken}

    told = draw_in_lockstep(folder, text, requests("flux"), readers)
    assert told[:2] == ["drawn"] * 2
    for each in told[2:]:
        assert "adapter 'b': no_such_layer" in each


@pytest.mark.parametrize("text", [pytest.param("sequence=2", marks=SLOW), "tensor=2"])
def test_adapters_make_room_on_all_ranks(text: str, tmp_path: Path) -> None:
    """There is room for one: requests wait for one another, but no rank for another."""
    folder = WRITERS["flux"](tmp_path / "model")
    adapters = random_adapters(folder)
    readers: Readers = {name: partial(adapters.__getitem__, name) for name in adapters}
    wanted = [each for each in requests("flux") if len(each.adapters or ()) < 2]
    told = draw_in_lockstep(folder, text, wanted, lambda _ranks: readers, adapter_bytes=_ONE_VALUE)
    assert told == ["drawn"] * 3
