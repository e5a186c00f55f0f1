"""A request in a pipeline's own words: the arguments of its call."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from PIL import Image

from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.input_image import ImageInput, InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.families.any_pipeline.reading.layers import layer_arguments, with_alpha
from diffuserve.models.families.any_pipeline.reading.signature import Signature
from diffuserve.models.families.any_pipeline.reading.tasks import (
    CONTROL_SCALES,
    CONTROL_TIMES,
    DURATIONS,
    FRAMES,
    MASKS,
    RATES,
    control_argument,
    image_argument,
)

# Sizes are the request's, not the nearest of a list, and prompts are read as they are.
_FIXED: Mapping[str | None, Any] = {
    "use_resolution_binning": False,
    "clean_caption": False,
    "enable_prompt_rewrite": False,
}


def call_arguments(
    signature: Signature, spec: ModelSpec, params: GenerationParams, index: int
) -> dict[str, Any]:
    """Return the arguments of the call that draws image `index` of a request, with its own seed."""
    assert params.seed is not None
    wanted: dict[str | None, Any] = {
        "prompt": params.prompt,
        "negative_prompt": _negative(signature, spec, params),
        "width": params.width,
        "height": params.height,
        "num_inference_steps": params.num_inference_steps,
        signature.guidance: params.guidance_scale if spec.has_guidance else None,
        "max_sequence_length": params.max_sequence_length,
        "strength": params.strength,
        signature.first(*DURATIONS): params.seconds,
        "lyrics": params.lyrics,
        signature.first(*CONTROL_SCALES): params.control_scale,
        **_control(signature, params),
        **(_clip(signature, params) if spec.is_video else {}),
        **layer_arguments(signature, params),
        **_images(signature, params),
    }
    return {
        **_taken(wanted, signature.arguments),
        **_taken(_FIXED, signature.arguments),
        "generator": torch.Generator("cpu").manual_seed(params.seed + index),
        "output_type": "np",
    }


def _taken(wanted: Mapping[str | None, Any], takes: Collection[str]) -> dict[str, Any]:
    given = ((name, value) for name, value in wanted.items() if value is not None)
    return {name: value for name, value in given if name is not None and name in takes}


def _negative(signature: Signature, spec: ModelSpec, params: GenerationParams) -> str | None:
    """Return the negative prompt; classes of true guidance guide only where there is one: a blank."""
    is_true = signature.guidance == "true_cfg_scale" and spec.num_passes(params) > 1
    return " " if is_true and params.negative_prompt is None else params.negative_prompt


def _clip(signature: Signature, params: GenerationParams) -> dict[str | None, Any]:
    return {signature.first(*FRAMES): params.num_frames, signature.first(*RATES): params.fps}


def _images(signature: Signature, params: GenerationParams) -> dict[str | None, Any]:
    """Return the images in the arguments of the class; several are a list, where it refers to them."""
    images = [_picture(signature, params, image) for image in params.images]
    named = {
        signature.first(*MASKS): params.mask,
        control_argument(signature): _control_image(params),
        "last_image": params.last_image,
    }
    given = {name: _picture(signature, params, image) for name, image in named.items() if image is not None}
    return {image_argument(signature): images[0] if len(images) == 1 else images or None, **given}


def _control_image(params: GenerationParams) -> ImageInput | None:
    return params.controls[0].image if params.controls else params.control_image


def _control(signature: Signature, params: GenerationParams) -> dict[str | None, Any]:
    """Return how much the ControlNet counts, and in which steps, where a request says so."""
    if not params.controls:
        return {}
    (use,) = params.controls
    return {
        signature.first(*CONTROL_SCALES): use.weight,
        **dict(zip(CONTROL_TIMES, (use.start, use.end), strict=True)),
    }


def _picture(signature: Signature, params: GenerationParams, image: ImageInput) -> Image.Image:
    """Return an image for diffusers' processors; where a class takes no size, its size is the result's."""
    picture = with_alpha(signature, as_picture(image))
    if "width" in signature.arguments or signature.first(*MASKS, "strength") is None:
        return picture
    assert params.width is not None
    assert params.height is not None
    return picture.resize((params.width, params.height), Image.Resampling.LANCZOS)


def as_picture(image: ImageInput) -> Image.Image:
    """Return an input image, whose pixels are there, for diffusers' processors."""
    assert isinstance(image, InputImage)
    assert image.pixels is not None
    return Image.frombytes(image.mode, (image.width, image.height), image.pixels)
