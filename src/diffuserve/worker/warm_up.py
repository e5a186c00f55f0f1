"""Warm-up of an engine before its first job, so that nobody waits for what a process does only once."""

import logging
from dataclasses import replace

from diffuserve.domain.errors import DiffuserveError
from diffuserve.engine.engine import Engine
from diffuserve.worker.image_output import ImageOutput

log = logging.getLogger(__name__)

_LONGEST_SECONDS = 5.0  # of a step at the model's own size, as predicted; a smaller image must do then


def warm_up(engine: Engine, images: ImageOutput) -> None:
    """Draw an image in one step and show it to the image filter; a failure is logged, and left to the jobs.

    Threads are started, kernels chosen and buffers allocated by then.
    """
    params = engine.spec.simple_request("warm-up", num_inference_steps=1, seed=0)
    try:
        if engine.estimate(params).seconds > _LONGEST_SECONDS:
            params = replace(params, width=engine.spec.min_size, height=engine.spec.min_size)
        [result] = engine.generate([params])
        images.judge(result.frames[0])
    except (DiffuserveError, RuntimeError) as error:
        log.warning("the warm-up failed: %s", error)
