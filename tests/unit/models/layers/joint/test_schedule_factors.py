"""Modulation factors of whole schedules."""

import gc
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from diffuserve.models.families.flux.config import FluxConfig
from diffuserve.models.families.flux.transformer import FluxTransformer, Levels
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.adapted.adapters import RowAdapters
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.layers.joint import schedule_factors
from diffuserve.models.layers.joint.schedule_factors import ScheduleFactors
from diffuserve.models.layers.linear import cpu_tilings
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import load_weights
from diffuserve.testing.checkpoints import write_flux_checkpoint

CPU = torch.device("cpu")
TIMESTEPS = (1000.0, 750.5, 500.0, 12.25)


@pytest.fixture(scope="module", params=["schnell", "dev"])
def transformer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> FluxTransformer:
    path: Path = tmp_path_factory.mktemp(request.param)
    folder = ModelFolder(write_flux_checkpoint(path, kind=request.param))
    config = FluxConfig.from_dict(folder.json("transformer/config.json"))
    with torch.device("meta"):
        model = FluxTransformer(config, choose_kernel(CPU, torch.float32))
    load_weights(model, folder.weights("transformer"), model.placements(), LoadPlan(CPU, torch.float32))
    model.set_tiling(*cpu_tilings(deterministic=True))
    return model


@pytest.fixture
def calls(transformer: FluxTransformer, monkeypatch: pytest.MonkeyPatch) -> list[Levels]:
    """Levels of each call that made factors."""
    seen: list[Levels] = []
    make = transformer.factors

    def record(levels: Levels, adapters: RowAdapters | None) -> Tensor:
        seen.append(levels)
        return make(levels, adapters)

    monkeypatch.setattr(transformer, "factors", record)
    return seen


class _Factors:
    """The factors of a transformer's schedules, with room for them."""

    def __init__(self, transformer: FluxTransformer) -> None:
        self._transformer = transformer
        self.cache = ScheduleFactors(transformer.num_factors * transformer.config.dim * 4)

    def of(self, pooled: Tensor, guidance: float, timesteps: Sequence[float]) -> Tensor:
        make = partial(self._transformer.factors_of, pooled, guidance, ())
        return self.cache.of_prompt(pooled, guidance, timesteps, make)


def prompt(seed: int = 0) -> Tensor:
    return torch.randn(24, generator=torch.Generator().manual_seed(seed))


def alone(transformer: FluxTransformer, pooled: Tensor, guidance: float, timestep: float) -> Tensor:
    has_guidance = transformer.config.guidance_embeds
    levels = Levels(
        pooled[None], torch.tensor([timestep]), torch.tensor([guidance]) if has_guidance else None
    )
    return transformer.factors(levels)


def test_factors_of_a_schedule_are_those_of_its_steps_to_the_bit(transformer: FluxTransformer) -> None:
    factors, pooled = _Factors(transformer), prompt()
    for index, timestep in enumerate(TIMESTEPS):
        row = factors.of(pooled, 3.5, TIMESTEPS[index:])
        assert row.shape == (1, transformer.num_factors, transformer.config.dim)
        assert torch.equal(row, alone(transformer, pooled, 3.5, timestep))


def test_all_steps_are_made_at_the_first(transformer: FluxTransformer, calls: list[Levels]) -> None:
    factors, pooled = _Factors(transformer), prompt()
    for index in range(len(TIMESTEPS)):
        factors.of(pooled, 3.5, TIMESTEPS[index:])
    assert [tuple(levels.timestep.tolist()) for levels in calls] == [TIMESTEPS]


def test_a_request_that_goes_on_in_the_middle_makes_what_is_left(
    transformer: FluxTransformer, calls: list[Levels]
) -> None:
    factors, pooled = _Factors(transformer), prompt()
    factors.of(pooled, 3.5, TIMESTEPS[2:])
    factors.of(pooled, 3.5, TIMESTEPS[3:])
    assert [tuple(levels.timestep.tolist()) for levels in calls] == [TIMESTEPS[2:]]


def test_prompts_and_guidance_have_factors_of_their_own(transformer: FluxTransformer) -> None:
    factors, first, second = _Factors(transformer), prompt(0), prompt(1)
    for pooled, guidance in ((first, 1.0), (second, 1.0), (first, 7.0)):
        row = factors.of(pooled, guidance, TIMESTEPS)
        assert torch.equal(row, alone(transformer, pooled, guidance, TIMESTEPS[0]))


def test_factors_go_with_their_prompt(transformer: FluxTransformer, calls: list[Levels]) -> None:
    """Otherwise they would take memory, and another prompt could get the id of this one, and its factors."""
    factors, pooled = _Factors(transformer), prompt()
    kept = weakref.ref(factors.of(pooled, 3.5, TIMESTEPS))
    factors.of(pooled, 7.0, TIMESTEPS)
    gc.collect()
    assert kept() is not None
    del pooled
    calls.clear()
    gc.collect()
    assert kept() is None
    assert not factors.cache._kept
    assert not factors.cache._keys


def test_the_oldest_factors_give_way(transformer: FluxTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    row_bytes = transformer.num_factors * transformer.config.dim * 4
    monkeypatch.setattr(schedule_factors, "_CACHE_BYTES", 2 * row_bytes)
    factors, first, second = _Factors(transformer), prompt(0), prompt(1)
    for pooled in (first, second):
        factors.of(pooled, 3.5, TIMESTEPS[:2])
    conditions: list[Any] = [condition for condition, _ in factors.cache._kept]
    assert {prompt for prompt, _ in conditions} == {id(second)}


@pytest.mark.parametrize(("room", "made"), [(3.5, [3, 1]), (0.5, [1, 1, 1, 1])])
def test_of_a_schedule_too_large_to_be_kept_the_next_steps_are_made(
    transformer: FluxTransformer,
    calls: list[Levels],
    monkeypatch: pytest.MonkeyPatch,
    room: float,
    made: list[int],
) -> None:
    row_bytes = transformer.num_factors * transformer.config.dim * 4
    monkeypatch.setattr(schedule_factors, "_MAX_AHEAD_BYTES", int(room * row_bytes))
    factors, pooled = _Factors(transformer), prompt()
    for index in range(len(TIMESTEPS)):
        factors.of(pooled, 3.5, TIMESTEPS[index:])
    assert [len(levels.timestep) for levels in calls] == made
