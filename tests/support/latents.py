"""Latents before the first step, as the engine's runner draws them."""

from torch import Tensor

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.model_runner import image_generators
from diffuserve.models.pipelines.base import PackedPipeline


def first_latents(pipeline: PackedPipeline, params: GenerationParams) -> Tensor:
    """Return the noise of a request whose defaults are filled in."""
    return pipeline.init_latents(params, pipeline.encode([params])[0], image_generators(params)).latents
