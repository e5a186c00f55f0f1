"""Requests of random small pipelines of diffusers, led by hand from step to step."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.quantization import Quantization
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.media.input_image import input_image
from diffuserve.models.families.any_pipeline.family import ANY_PIPELINE
from diffuserve.models.families.any_pipeline.pipeline import AnyPipeline, AnyRequest
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.adapted.adapters import Uses
from diffuserve.models.pipelines.base import RunningStep
from diffuserve.models.pipelines.offloaded import load_offloaded
from diffuserve.models.pipelines.run_progress import RunProgress
from diffuserve.models.weights.load_plan import LoadPlan
from support.tiny_pipelines import TinyPipeline, tiny_folder


def load_tiny(
    name: str,
    parent: Path,
    quantization: Quantization | None = None,
    offload: Offload = Offload.NONE,
    device: str = "cpu",
) -> AnyPipeline:
    plan = LoadPlan(torch.device(device), torch.float32, quantization=quantization, offload=offload)
    return load_any(tiny_folder(name, parent), plan)


def load_any(folder: Path, plan: LoadPlan) -> AnyPipeline:
    """Load a folder as one of any pipeline, also if its class has a family of its own."""
    load = partial(ANY_PIPELINE.load, ModelFolder(folder))
    pipeline = load(plan) if plan.offload is Offload.NONE else load_offloaded(load, plan)
    assert isinstance(pipeline, AnyPipeline)
    return pipeline


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


def check(failure: Exception | None) -> None:
    """Raise what a request failed with."""
    if failure is not None:
        raise failure


def step(pipeline: AnyPipeline, request: AnyRequest, first: int = 0) -> Iterator[RunProgress]:
    """Do a request's steps from the first one on, and yield what is kept after each."""
    count = pipeline.spec.num_steps(request.params)
    for index in range(first, count):
        check(*pipeline.step([RunningStep(request, index, count, range(1))]))
        (progress,) = request.progress()
        yield progress


def finished(pipeline: AnyPipeline, request: AnyRequest) -> list[bytes]:
    (made,) = pipeline.decode([request], [range(1)])
    request.close()
    if isinstance(made, Exception):
        raise made
    return [frame.tobytes() for media in made for frame in media.frames]


def drawn(pipeline: AnyPipeline, params: GenerationParams, adapters: Uses = ()) -> list[bytes]:
    """Return the frames of a request that runs alone."""
    request = pipeline.begin(params, adapters=adapters)
    check(*pipeline.encode([request]))
    list(step(pipeline, request))
    return finished(pipeline, request)
