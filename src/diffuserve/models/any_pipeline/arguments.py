"""A request in a pipeline's own words: the arguments of its call."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from PIL import Image

from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.input_image import ImageInput, InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.any_pipeline.signature import Signature
from diffuserve.models.any_pipeline.tasks import FRAMES, MASKS, RATES, control_argument, image_argument

# Sizes are the request's, not the nearest of a list, and prompts are read as they are.
_FIXED = {"use_resolution_binning": False, "clean_caption": False, "enable_prompt_rewrite": False}


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
        "audio_end_in_s": params.seconds,
        "audio_duration": params.seconds,
        "lyrics": params.lyrics,
        "controlnet_conditioning_scale": params.control_scale,
        **(_clip(signature, params) if spec.is_video else {}),
        **_images(signature, params),
    }
    return {
        **_taken(wanted, signature.arguments),
        **_taken(_FIXED, signature.arguments),
        "generator": torch.Generator("cpu").manual_seed(params.seed + index),
        "output_type": "np",
    }


def _taken(wanted: Mapping[str, Any], takes: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in wanted.items() if value is not None and name in takes}


def _clip(signature: Signature, params: GenerationParams) -> dict[str, Any]:
    length, rate = signature.first(*FRAMES), signature.first(*RATES)
    return {name: value for name, value in ((length, params.num_frames), (rate, params.fps)) if name}


def _images(signature: Signature, params: GenerationParams) -> dict[str, Any]:
    """Return the images in the arguments of the class; several are a list, where it refers to them."""
    images = [as_picture(image) for image in params.images]
    given = {image_argument(signature): images[0] if len(images) == 1 else images or None}
    if params.mask is not None:
        given[signature.first(*MASKS)] = as_picture(params.mask)
    if params.control_image is not None:
        given[control_argument(signature)] = as_picture(params.control_image)
    if params.last_image is not None:
        given["last_image"] = as_picture(params.last_image)
    return {name: value for name, value in given.items() if name}


def as_picture(image: ImageInput) -> Image.Image:
    """Return an input image, whose pixels are there, for diffusers' processors."""
    assert isinstance(image, InputImage)
    assert image.pixels is not None
    return Image.frombytes(image.mode, (image.width, image.height), image.pixels)
