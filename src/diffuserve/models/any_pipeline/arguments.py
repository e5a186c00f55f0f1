"""A request in a pipeline's own words: the arguments of its call."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from PIL import Image

from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.input_image import ImageInput, InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.any_pipeline.signature import Signature

# Sizes are the request's, not the nearest of a list, and prompts are read as they are.
_FIXED = {"use_resolution_binning": False, "clean_caption": False}


def call_arguments(
    signature: Signature, spec: ModelSpec, params: GenerationParams, index: int
) -> dict[str, Any]:
    """Return the arguments of the call that draws image `index` of a request, with its own seed."""
    assert params.seed is not None
    wanted = {
        "prompt": params.prompt,
        "negative_prompt": params.negative_prompt,
        "width": params.width,
        "height": params.height,
        "num_inference_steps": params.num_inference_steps,
        signature.guidance: params.guidance_scale if spec.has_guidance else None,
        "max_sequence_length": params.max_sequence_length,
        "strength": params.strength,
        **(_clip(params) if spec.is_video else {}),
        **_images(params),
    }
    return {
        **_taken(wanted, signature.arguments),
        **_taken(_FIXED, signature.arguments),
        "generator": torch.Generator("cpu").manual_seed(params.seed + index),
        "output_type": "np",
    }


def _taken(wanted: Mapping[str, Any], takes: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in wanted.items() if value is not None and name in takes}


def _clip(params: GenerationParams) -> dict[str, Any]:
    return {"num_frames": params.num_frames, "frame_rate": params.fps, "fps": params.fps}


def _images(params: GenerationParams) -> dict[str, Any]:
    images = [as_picture(image) for image in params.images]
    mask = None if params.mask is None else as_picture(params.mask)
    return {"image": images[0] if len(images) == 1 else images or None, "mask_image": mask}


def as_picture(image: ImageInput) -> Image.Image:
    """Return an input image, whose pixels are there, for diffusers' processors."""
    assert isinstance(image, InputImage)
    assert image.pixels is not None
    return Image.frombytes(image.mode, (image.width, image.height), image.pixels)
