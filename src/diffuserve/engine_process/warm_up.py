"""Warm-up of an engine before its first job, so that no job waits for one-time work of the process."""

import logging
from dataclasses import replace
from typing import Any

import torch

from diffuserve.domain.errors import DiffuserveError
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.engine import Engine
from diffuserve.engine.outputs import GenerationResult
from diffuserve.engine_process.output.image_output import ImageOutput
from diffuserve.models.pipelines.base import packed

log = logging.getLogger(__name__)

_SHORTEST_SOUND = 1.0
_LONGEST_SECONDS = 5.0  # above this prediction for a step at the model's own size, a smaller image is drawn


def warm_up(engine: Engine, images: ImageOutput) -> None:
    """Draw an image in one step, or do the engine's phase of that, and pass it through the image filter.

    This starts threads, chooses kernels and allocates buffers. A failure is only logged: it will recur in
    jobs.
    """
    params = engine.spec.simple_request("warm-up", num_inference_steps=1, seed=0)
    try:
        if engine.estimate(params).seconds > _LONGEST_SECONDS:
            params = replace(params, **_least(engine.spec))
        result = _result(engine, engine.spec.resolve(params, seed=0))
        if result.frames:
            images.judge(result.frames[0])
        if result.sounds:
            images.judge_sound(result.sounds[0])
    except (DiffuserveError, RuntimeError) as error:
        log.warning("the warm-up failed: %s", error)


def _least(spec: ModelSpec) -> dict[str, Any]:
    """Return what the smallest request says."""
    if spec.is_audio:
        return {"seconds": min(spec.seconds, _SHORTEST_SOUND)}
    return {"width": spec.min_size, "height": spec.min_size}


def _result(engine: Engine, params: GenerationParams) -> GenerationResult:
    """Run the phases that the engine's parts of the model support; decode gray latents if it only decodes."""
    parts = engine.pipeline.parts
    latents = None if parts.denoising else torch.zeros(packed(engine.pipeline).latents_shape(params))
    engine.add(params, until_denoised=not parts.decoding, latents=latents)
    while True:
        for output in engine.step():
            if output.error is not None:
                raise output.error
            if output.result is not None:
                return output.result
