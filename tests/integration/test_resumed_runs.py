"""Runs of diffusers' pipelines that begin anew at a kept step end as the whole ones do, to the bit."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.media.input_image import input_image
from diffuserve.models.any_pipeline.pipeline import AnyPipeline, AnyRequest
from diffuserve.models.any_pipeline.proven import RESUME, RESUMING_SOLVERS
from diffuserve.models.base import RunningStep
from diffuserve.models.frames import Media
from diffuserve.models.registry import load_pipeline
from diffuserve.models.run_progress import RunProgress
from diffuserve.models.weights.load_plan import LoadPlan
from support.tiny_pipelines import TINY_PIPELINES, TinyPipeline, tiny_folder

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
    ("sd3", "FlowMatchHeunDiscreteScheduler", {}),
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
        folder = tiny_folder(name, parent)
        pipeline = load_pipeline(str(folder), LoadPlan(torch.device("cpu"), torch.float32))
        assert isinstance(pipeline, AnyPipeline)
        return pipeline

    return loaded


def request_of(tiny: TinyPipeline, pipeline: AnyPipeline, num_steps: int = 5) -> GenerationParams:
    photo = Image.effect_noise(tiny.sizes[0], 64).convert("RGB")
    pictures: Mapping[str, Any] = {
        "image": {"image": input_image(photo)},
        "mask_image": {"mask": input_image(photo.convert("L").point(lambda level: 255 * (level > 128)), "L")},
        "control_image": {"control_image": input_image(photo)},
    }
    values = {name: value for given in tiny.pictures for name, value in pictures[given].items()}
    values |= {"num_frames": tiny.frames[0]} if tiny.is_clip else {}
    values |= {"guidance_scale": 4.0} if pipeline.spec.has_guidance else {}
    width, height = tiny.sizes[0]
    params = GenerationParams(
        prompt="a red star", width=width, height=height, num_inference_steps=num_steps, **values
    )
    return pipeline.spec.resolve(params, seed=3)


def step(pipeline: AnyPipeline, request: AnyRequest, first: int = 0) -> Iterator[RunProgress]:
    """Do a request's steps from the first one on, and yield what is kept after each."""
    count = pipeline.spec.num_steps(request.params)
    for index in range(first, count):
        assert pipeline.step([RunningStep(request, index, count, range(1))]) == [None]
        (progress,) = request.progress()
        yield progress


def finished(pipeline: AnyPipeline, request: AnyRequest) -> list[bytes]:
    (made,) = pipeline.decode([request], [range(1)])
    request.close()
    assert isinstance(made, list), made
    assert all(isinstance(media, Media) for media in made)
    return [frame.tobytes() for media in made for frame in media.frames]


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
