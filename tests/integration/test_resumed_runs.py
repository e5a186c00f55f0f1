"""Runs of diffusers' pipelines that begin anew at a kept step end as the whole ones do, to the bit."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.families.any_pipeline.pipeline import AnyPipeline
from diffuserve.models.families.any_pipeline.proven import RESUME, RESUMING_SOLVERS
from support.any_runs import finished, load_tiny, request_of, step
from support.tiny_pipelines import TINY_PIPELINES

pytestmark = pytest.mark.filterwarnings("ignore")  # diffusers' own

Load = Callable[[str], AnyPipeline]
SLOW = pytest.mark.slow
NAMES = [name for name, tiny in TINY_PIPELINES.items() if tiny.class_name in RESUME]
FAST = ("sd3",)
FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True}
# Where each solver is tried: a pipeline of its kind, and settings by which it computes otherwise.
SOLVERS: list[tuple[str, str, dict[str, Any]]] = [
    ("pixart", "DDIMScheduler", {}),
    ("pixart", "DDPMScheduler", {}),
    ("pixart", "DEISMultistepScheduler", {}),
    ("pixart", "DPMSolverMultistepScheduler", {}),
    ("pixart", "DPMSolverMultistepScheduler", {"algorithm_type": "sde-dpmsolver++"}),
    ("pixart", "DPMSolverMultistepScheduler", {"solver_order": 3, "use_karras_sigmas": True}),
    ("pixart", "DPMSolverSinglestepScheduler", {}),
    ("pixart", "EulerAncestralDiscreteScheduler", {}),
    ("pixart", "EulerDiscreteScheduler", {}),
    ("pixart", "HeunDiscreteScheduler", {}),
    ("pixart", "KDPM2AncestralDiscreteScheduler", {}),
    ("pixart", "KDPM2DiscreteScheduler", {}),
    ("pixart", "LCMScheduler", {}),
    ("pixart", "PNDMScheduler", {}),
    ("pixart", "TCDScheduler", {}),
    ("pixart", "UniPCMultistepScheduler", {"solver_order": 3}),
    ("sd3", "DPMSolverMultistepScheduler", FLOW),
    ("sd3", "FlowMatchEulerDiscreteScheduler", {"shift": 2.0}),
    ("sd3", "FlowMatchEulerDiscreteScheduler", {"stochastic_sampling": True}),
    ("sd3", "FlowMatchHeunDiscreteScheduler", {}),
    ("sd3", "FlowMatchLCMScheduler", {}),
    ("sd3", "UniPCMultistepScheduler", FLOW),
    ("cogvideox", "CogVideoXDDIMScheduler", {}),
    ("cogvideox", "CogVideoXDPMScheduler", {}),
]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Return a function that loads each pipeline once."""
    parent: Path = tmp_path_factory.mktemp("tiny")

    @cache
    def loaded(name: str) -> AnyPipeline:
        return load_tiny(name, parent)

    return loaded


def check_resumed(pipeline: AnyPipeline, params: GenerationParams) -> None:
    whole = pipeline.begin(params)
    assert pipeline.encode([whole]) == [None]
    kept = list(step(pipeline, whole))
    expected = finished(pipeline, whole)
    assert len({progress.steps for progress in kept}) == len(kept) >= 3
    for index, progress in enumerate(kept):
        request = pipeline.begin(params, [progress])
        assert pipeline.encode([request]) == [None]
        list(step(pipeline, request, index + 1))
        assert finished(pipeline, request) == expected


def test_every_class_that_resumes_is_tried_here() -> None:
    assert {TINY_PIPELINES[name].class_name for name in NAMES} == RESUME
    assert {name for _, name, _ in SOLVERS} == RESUMING_SOLVERS


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in FAST else SLOW) for name in NAMES])
def test_a_class_goes_on_from_each_of_its_steps(load: Load, name: str) -> None:
    pipeline = load(name)
    assert pipeline.spec.resumes
    check_resumed(pipeline, request_of(TINY_PIPELINES[name], pipeline))


@pytest.mark.parametrize(
    ("name", "solver", "settings"), [pytest.param(*case, marks=SLOW) for case in SOLVERS]
)
def test_a_solver_goes_on_from_each_of_its_steps(
    load: Load, name: str, solver: str, settings: Mapping[str, Any]
) -> None:
    import diffusers

    pipeline = load(name)
    pipeline._pipe.register_modules(scheduler=getattr(diffusers, solver)(**settings))
    check_resumed(pipeline, request_of(TINY_PIPELINES[name], pipeline, num_steps=6))
