"""A request of any pipeline fails and ends alone: its neighbors go on as they were (INV-1, INV-3)."""

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from diffuserve.domain.errors import DiffuserveError, NumericalFailure, RequestFailed
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.outputs import GenerationResult
from support.tiny_pipelines import TINY_PIPELINES, tiny_folder
from support.tiny_pipelines.requests import TinyRequest
from support.tiny_pipelines.watched_engine import Levels, WatchedEngine, decibels

MIN_DECIBELS = 60.0
SD3 = TINY_PIPELINES["sd3"]
CULPRIT_STEPS = 5  # no other request has as many
CULPRIT = TinyRequest("a green square", 4, steps=CULPRIT_STEPS).params(SD3)
NEIGHBORS = [
    TinyRequest("a red circle", 1, steps=4, negative="ugly").params(SD3),
    TinyRequest("two hearts", 3, steps=6, guidance=1.0).params(SD3),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder("sd3", tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def watched(folder: Path) -> Iterator[WatchedEngine]:
    engine = WatchedEngine(folder)
    yield engine
    engine.engine.close()


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[int, Levels]:
    """Return what each neighbor is without company."""
    engine = WatchedEngine(folder)
    for params in NEIGHBORS:
        engine.staggered([params])
    engine.engine.close()
    return engine.levels


def assert_neighbors_are(alone: dict[int, Levels], watched: WatchedEngine) -> None:
    for params in NEIGHBORS:
        assert params.seed is not None
        assert decibels(watched.levels[params.seed], alone[params.seed]) >= MIN_DECIBELS


def is_culprits(scheduler: Any) -> bool:
    return len(scheduler.timesteps) == CULPRIT_STEPS


def raise_in_its_own_lines(monkeypatch: pytest.MonkeyPatch, watched: WatchedEngine) -> None:
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_culprits(self) and self.step_index == 1:
            raise ArithmeticError("in its own lines")
        return kind.step(self, *args, **kwargs)

    kind = step_by(step, monkeypatch, watched)


def draw_nan(monkeypatch: pytest.MonkeyPatch, watched: WatchedEngine) -> None:
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        latents, *others = kind.step(self, *args, **kwargs)
        return latents * (float("nan") if is_culprits(self) else 1), *others

    kind = step_by(step, monkeypatch, watched)


def step_by(step: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, watched: WatchedEngine) -> Any:
    """Have the scheduler, and each run's copy of it, step by a function; return its class as it was."""
    kind = type(watched.scheduler)
    monkeypatch.setattr(watched.scheduler, "__class__", type("Faulty", (kind,), {"step": step}))
    return kind


def raise_in_a_shared_pass(monkeypatch: pytest.MonkeyPatch, watched: WatchedEngine) -> None:
    """Raise at the culprit's second timestep, which no other request has."""
    scheduler = type(watched.scheduler).from_config(watched.scheduler.config)
    scheduler.set_timesteps(CULPRIT_STEPS)
    embed = watched.transformer.time_text_embed

    def raising(timestep: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if bool((timestep == scheduler.timesteps[1]).any()):
            raise ArithmeticError("in a shared pass")
        return type(embed).forward(embed, timestep, *args, **kwargs)

    monkeypatch.setattr(embed, "forward", raising)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (raise_in_its_own_lines, RequestFailed),
        (raise_in_a_shared_pass, RequestFailed),
        (draw_nan, NumericalFailure),
    ],
)
def test_a_fault_fails_its_request_alone(
    fault: Callable[[pytest.MonkeyPatch, WatchedEngine], None],
    kind: type[DiffuserveError],
    watched: WatchedEngine,
    alone: dict[int, Levels],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault(monkeypatch, watched)
    first, failed, second = watched.staggered([NEIGHBORS[0], CULPRIT, NEIGHBORS[1]])
    assert isinstance(failed, kind)
    assert isinstance(first, GenerationResult)
    assert isinstance(second, GenerationResult)
    assert_neighbors_are(alone, watched)
    assert max(watched.rows) > 2, "the three shared passes"
    assert isinstance(watched.staggered([NEIGHBORS[0]])[0], GenerationResult), "the engine goes on"


def test_an_image_is_that_of_its_request_without_company(
    watched: WatchedEngine, alone: dict[int, Levels]
) -> None:
    watched.staggered([*NEIGHBORS, CULPRIT])
    assert_neighbors_are(alone, watched)


def test_an_aborted_request_leaves_its_neighbors_and_nothing_behind(
    watched: WatchedEngine, alone: dict[int, Levels]
) -> None:
    ids = [watched.engine.add(params) for params in (NEIGHBORS[0], CULPRIT, NEIGHBORS[1])]
    watched.engine.step()
    watched.engine.step()
    assert watched.engine.abort(ids[1])
    while watched.engine.num_unfinished:
        watched.engine.step()
    assert_neighbors_are(alone, watched)
    assert CULPRIT.seed not in watched.levels
    assert not runs_alive()


async def test_a_request_that_is_given_up_ends_and_its_neighbor_goes_on(
    watched: WatchedEngine, alone: dict[int, Levels]
) -> None:
    """A deadline that passes ends a request so, wherever it is."""
    neighbor = asyncio.create_task(watched.engine.submit(NEIGHBORS[1]))
    slow = asyncio.create_task(watched.engine.submit(long_request()))
    while not watched.rows:
        await asyncio.sleep(0.001)
    slow.cancel()
    await neighbor
    with pytest.raises(asyncio.CancelledError):
        await slow
    while watched.engine.num_unfinished:
        await asyncio.sleep(0.001)
    seed = NEIGHBORS[1].seed
    assert seed is not None
    assert decibels(watched.levels[seed], alone[seed]) >= MIN_DECIBELS
    assert len(watched.rows) < 100, "it did not run to its end"


def long_request() -> GenerationParams:
    return TinyRequest("a long story", 9, steps=100).params(SD3)


def test_tensors_are_as_many_and_no_run_is_left_after_each_round(
    watched: WatchedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round has a request that ends well, one that is aborted and one that fails."""
    raise_in_its_own_lines(monkeypatch, watched)
    counts = []
    for _ in range(6):
        ids = [watched.engine.add(params) for params in (*NEIGHBORS, CULPRIT)]
        watched.engine.step()
        watched.engine.abort(ids[0])
        while watched.engine.num_unfinished:
            watched.engine.step()
        watched.levels.clear()
        gc.collect()
        counts.append(count_tensors())
        assert not runs_alive()
    assert counts[-1] == counts[1], counts


def count_tensors() -> int:
    return sum(type(found) is torch.Tensor for found in gc.get_objects())


def runs_alive() -> list[str]:
    """Return the threads of runs that have not ended."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("diffuserve-run")]
