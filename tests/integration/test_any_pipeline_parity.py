"""Requests of any pipeline share passes, and get what diffusers' own pipeline makes of each alone (INV-2).

Results are compared as floats, before they are rounded to eight bits.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diffuserve.engine.outputs import GenerationResult
from support.tiny_pipelines import TINY_PIPELINES, tiny_folder
from support.tiny_pipelines.requests import mixed_requests
from support.tiny_pipelines.watched_engine import WatchedEngine, bare_levels, decibels

MIN_DECIBELS = 60.0  # float32 on a CPU
FAST = ("sd3", "z-image", "qwen-image", "ltx")
SLOW = (
    "sd3-img2img",
    "sd3-inpaint",
    "flux2",
    "flux2-klein",
    "pixart",
    "pixart-sigma",
    "sana",
    "ltx-img2vid",
    "ltx2",
    "cogvideox",
    "hunyuan-video-15",
    "chroma",
    "kandinsky5-image",
    "kandinsky5-video",
    "krea2",
    "longcat-image",
    "lumina2",
    "aura-flow",
    "ovis-image",
    "hunyuan-image",
    "mochi",
    "sana-video",
    "hunyuan-video",
)


@pytest.fixture(
    scope="module", params=[*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(name, tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def bare(folder: Path) -> Any:
    from diffusers import DiffusionPipeline

    pipe = DiffusionPipeline.from_pretrained(folder, local_files_only=True)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture
def watched(folder: Path) -> Iterator[WatchedEngine]:
    engine = WatchedEngine(folder)
    yield engine
    engine.engine.close()


def test_requests_a_step_apart_share_passes_and_equal_the_bare_pipeline(
    name: str, watched: WatchedEngine, bare: Any
) -> None:
    """Of the last request the second image is that of its seed alone."""
    tiny = TINY_PIPELINES[name]
    requests = mixed_requests(tiny)
    wanted = [request.params(tiny) for request in requests[:-1]] + [requests[-1].params(tiny, num_images=2)]
    outcomes = watched.staggered(wanted)
    assert all(isinstance(outcome, GenerationResult) for outcome in outcomes), outcomes
    for request in [*requests, replace(requests[-1], seed=requests[-1].seed + 1)]:
        distance = decibels(watched.levels[request.seed], bare_levels(bare, tiny, request))
        assert distance >= MIN_DECIBELS, (request, distance)
    assert max(watched.rows) > rows_alone(watched, name), "requests shared passes"


def rows_alone(watched: WatchedEngine, name: str) -> int:
    """Return the rows of a request's largest pass without company."""
    watched.rows.clear()
    watched.staggered([mixed_requests(TINY_PIPELINES[name])[0].params(TINY_PIPELINES[name])])
    return max(watched.rows)
