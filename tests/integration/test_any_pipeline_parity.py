"""Requests of any pipeline share passes, and get what diffusers' own pipeline makes of each alone (INV-2).

Results are compared as floats, before they are rounded to eight bits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diffuserve.engine.outputs import GenerationResult
from diffuserve.models.families.any_pipeline.proven import SHARE_PASSES
from support.tiny_pipelines import TINY_PIPELINES, bare_pipeline, tiny_folder
from support.tiny_pipelines.requests import TinyRequest, mixed_requests
from support.tiny_pipelines.watched_engine import WatchedEngine, bare_levels, decibels

MIN_DECIBELS = 60.0  # float32 on a CPU
FAST = ("sd3", "ltx")
SLOW = (
    "z-image",
    "qwen-image",
    "sd3-img2img",
    "sd3-inpaint",
    "sd3-controlnet",
    "stable-diffusion-controlnet",
    "stable-diffusion-xl-controlnet",
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
    "qwen-image-edit-plus",
    "qwen-image-img2img",
    "qwen-image-inpaint",
    "z-image-img2img",
    "z-image-inpaint",
    "chroma-img2img",
    "ltx2-img2vid",
    "stable-audio",
    "ace-step",
    "sana-controlnet",
    "qwen-image-controlnet",
)
pytestmark = [
    pytest.mark.filterwarnings("ignore:`FluxPosEmbed` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:In CPU autocast:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning"),
]


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
    return bare_pipeline(folder)


@pytest.fixture
def watched(folder: Path) -> Iterator[WatchedEngine]:
    engine = WatchedEngine(folder)
    yield engine
    engine.engine.close()


def test_the_classes_that_share_passes_are_those_compared_here() -> None:
    assert {TINY_PIPELINES[name].class_name for name in FAST + SLOW} == SHARE_PASSES


def test_requests_a_step_apart_share_passes_and_equal_the_bare_pipeline(
    name: str, watched: WatchedEngine, bare: Any
) -> None:
    tiny = TINY_PIPELINES[name]
    requests = mixed_requests(tiny)
    outcomes = watched.staggered([request.params(tiny) for request in requests])
    assert all(isinstance(outcome, GenerationResult) for outcome in outcomes), outcomes
    assert_equal_bare(requests, name, watched, bare)
    largest = max(watched.rows)
    watched.rows.clear()
    watched.staggered([requests[0].params(tiny)])
    assert largest > max(watched.rows), "requests shared passes"


def test_the_second_image_is_that_of_its_seed_alone(name: str, watched: WatchedEngine, bare: Any) -> None:
    tiny = TINY_PIPELINES[name]
    first = mixed_requests(tiny)[0]
    watched.staggered([first.params(tiny, num_images=2)])
    assert_equal_bare([first, replace(first, seed=first.seed + 1)], name, watched, bare)


def test_a_prompt_a_seed_and_steps_change_what_random_weights_make(name: str, bare: Any) -> None:
    """Rule out that parity holds because all results are alike."""
    tiny = TINY_PIPELINES[name]
    request = mixed_requests(tiny)[0]
    made = bare_levels(bare, tiny, request)
    others = (
        replace(request, prompt="two blue stars on black"),
        replace(request, seed=99),
        replace(request, steps=request.steps + 1),
    )
    for other in others:
        assert decibels(made, bare_levels(bare, tiny, other)) < MIN_DECIBELS - 5, other


def assert_equal_bare(requests: Sequence[TinyRequest], name: str, watched: WatchedEngine, bare: Any) -> None:
    for request in requests:
        expected = bare_levels(bare, TINY_PIPELINES[name], request)
        distance = decibels(watched.levels[request.seed], expected)
        assert distance >= MIN_DECIBELS, (request, distance)
