"""Refusals of requests that a model does not support. Requests must have their defaults filled in."""

import math
from collections.abc import Mapping

from diffuserve.domain.errors import ImageTooLarge, InvalidParams, ModelNotCapable
from diffuserve.domain.models.abilities import ModelAbilities
from diffuserve.domain.requests.control_use import ControlUse
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import FIELDS, IMAGE_FIELDS, GenerationParams
from diffuserve.domain.requests.request_fields import RequestField
from diffuserve.domain.requests.samplers import MAX_STEPS
from diffuserve.domain.text.nearest import did_you_mean

_MAX_NAMED = 5
_MAX_REFERENCE_RATIO = 100  # of the longer side to the shorter one, where the area is given


def check_request(spec: ModelAbilities, params: GenerationParams) -> None:
    """Raise `InvalidParams` or `ModelNotCapable` if the model does not support the request."""
    _check_size(spec, params)
    _check_limits(spec, params)
    _check_images(spec, params)
    _check_abilities(spec, params)
    _check_controls(spec, params)
    _check_strength(spec, params)
    _check_sampler(spec, params)
    _check_frames(spec, params)
    _check_seconds(spec, params)


def min_strength(num_steps: int) -> float:
    """Return a strength, of few digits, that leaves one step."""
    return math.ceil(1000 / num_steps) / 1000


def _check_size(spec: ModelAbilities, params: GenerationParams) -> None:
    if not spec.has_size:
        return
    assert params.width is not None
    assert params.height is not None
    for field, value in (("width", params.width), ("height", params.height)):
        if not spec.min_size <= value <= spec.max_size:
            raise InvalidParams(
                field, value, f"{spec.name} generates {spec.min_size}…{spec.max_size} pixels a side"
            )
        _check_multiple(spec, field, value)
    if params.width * params.height > spec.max_pixels:
        size = f"{params.width}x{params.height}"
        limit = f"{spec.name} generates at most {spec.max_pixels:,} pixels an image"
        raise ImageTooLarge("size", size, f"{limit}; try {_largest_like(spec, params.width, params.height)}")


def _largest_like(spec: ModelAbilities, width: int, height: int) -> str:
    """Return the largest size of about the same proportions that the model generates."""
    step = spec.size_multiple
    scale = math.sqrt(spec.max_pixels / (width * height))
    shorter = max(-(-spec.min_size // step), int(min(width, height) * scale) // step) * step
    longer = min(int(max(width, height) * scale), spec.max_pixels // shorter) // step * step
    return f"{longer}x{shorter}" if width >= height else f"{shorter}x{longer}"


def _check_multiple(spec: ModelAbilities, field: str, value: int) -> None:
    if value % spec.size_multiple:
        lower = value // spec.size_multiple * spec.size_multiple
        sides = [
            side for side in (lower, lower + spec.size_multiple) if spec.min_size <= side <= spec.max_size
        ]
        nearest = " or ".join(map(str, sides))
        raise InvalidParams(field, value, f"must be a multiple of {spec.size_multiple} pixels; try {nearest}")


def _check_limits(spec: ModelAbilities, params: GenerationParams) -> None:
    assert params.max_sequence_length is not None
    if params.num_images > spec.max_images:
        raise InvalidParams(
            "num_images", params.num_images, f"{spec.name} generates at most {spec.max_images} a request"
        )
    if params.max_sequence_length > spec.longest_sequence_length:
        raise InvalidParams(
            "max_sequence_length",
            params.max_sequence_length,
            f"{spec.name} reads at most {spec.longest_sequence_length} tokens",
        )


def takes(spec: ModelAbilities, declared: RequestField) -> bool:
    """Return whether a request of the model may say anything with a field."""
    is_read = not declared.samplers or bool({spec.sampler, *spec.samplers} & {*declared.samplers})
    return is_read and (not declared.needs or bool(getattr(spec, declared.needs)))


def naming_able(
    error: ModelNotCapable, spec: ModelAbilities, models: Mapping[str, ModelAbilities]
) -> ModelNotCapable:
    """Return the model's refusal of an image with the names of `models` that take one; any other as it is."""
    declared = IMAGE_FIELDS.get(error.field)
    if declared is None or takes(spec, declared):
        return error
    able = sorted(name for name, other in models.items() if takes(other, declared))
    if not able:
        return error
    remedy = f"{error.remedy}, or choose {' or '.join(able[:_MAX_NAMED])}"
    return ModelNotCapable(error.field, error.value, remedy)


def _check_abilities(spec: ModelAbilities, params: GenerationParams) -> None:
    for name, declared in FIELDS.items():
        value = getattr(params, name)
        if declared.refusal and declared.asks_for_something(value) and not takes(spec, declared):
            shown = "an image" if declared.is_image else value
            raise ModelNotCapable(name, shown, f"{spec.name} {declared.refusal}")
        is_said = value is not None or (name == "control_image" and params.controls)
        if not is_said and declared.needed_by and getattr(spec, declared.needed_by):
            raise InvalidParams(name, None, f"{spec.name} {declared.demand}")


def _check_controls(spec: ModelAbilities, params: GenerationParams) -> None:
    """Refuse ControlNets that the model does not have, and kinds of control images that they do not know."""
    field = "controls" if params.controls else "control_image"
    if spec.run_by and len(params.controls or ()) > 1:
        remedy = f"{spec.name} is run by {spec.run_by}, and has one ControlNet; give one control"
        raise InvalidParams(field, len(params.controls or ()), remedy)
    for use in spec.control_uses(params):
        if use.name not in spec.controlnets:
            known = ", ".join(spec.controlnets)
            hint = did_you_mean(use.name, spec.controlnets)
            raise InvalidParams(field, use.name, f"{spec.name} has no such ControlNet; known: {known}{hint}")
        _check_mode(field, use, spec.control_modes[spec.controlnets.index(use.name)])


def _check_mode(field: str, use: ControlUse, num_modes: int) -> None:
    modes = f"a mode in 0…{num_modes - 1}"
    if use.mode is None and num_modes:
        raise InvalidParams(field, use.name, f"knows several kinds of images; give controls with {modes}")
    if use.mode is not None and not num_modes:
        raise InvalidParams(field, use.mode, f"{use.name} knows one kind of images; leave mode out")
    if use.mode is not None and use.mode >= num_modes:
        raise InvalidParams(field, use.mode, f"{use.name} has {modes}")


def _check_sampler(spec: ModelAbilities, params: GenerationParams) -> None:
    if params.sampler is not None and params.sampler not in spec.samplers:
        known = (
            f"it has {', '.join(spec.samplers)}" if spec.samplers else "it has its own alone; leave it out"
        )
        raise ModelNotCapable("sampler", params.sampler, f"{spec.name} cannot use it; {known}")
    name, steps = params.sampler or spec.sampler, params.num_inference_steps or 0
    if steps > MAX_STEPS.get(name, steps):
        raise InvalidParams("num_inference_steps", steps, f"{name} takes at most {MAX_STEPS[name]}")
    _check_sampler_options(spec, params, name)


def _check_sampler_options(spec: ModelAbilities, params: GenerationParams, sampler: str) -> None:
    """Refuse what is for other samplers than that of a request."""
    for name, value in params.sampler_options:
        declared = FIELDS[name]
        if sampler not in declared.samplers and declared.asks_for_something(value):
            known = [f"give sampler {reader}" for reader in declared.samplers if reader in spec.samplers]
            remedy = " or ".join([*known, "leave it out"])
            whose = f"the sampler {sampler}" if sampler else f"{spec.name}'s own sampler"
            raise ModelNotCapable(name, value, f"{whose} does not take it; {remedy}")


def _check_frames(spec: ModelAbilities, params: GenerationParams) -> None:
    """Refuse numbers of frames that are too large, or between two numbers of latent frames."""
    frames, stride = params.num_frames or 1, spec.temporal_stride
    for name, value in params.clip_values.items() if frames == 1 else ():
        raise InvalidParams(name, value, "is for clips; leave it out, or give more num_frames")
    if frames > spec.max_frames:
        raise ModelNotCapable("num_frames", frames, f"{spec.name} {_most_frames(spec)}")
    if (frames - 1) % stride:
        lower = (frames - 1) // stride * stride + 1
        nearest = f"{lower} or {lower + stride}" if lower + stride <= spec.max_frames else f"{lower}"
        raise ModelNotCapable(
            "num_frames",
            frames,
            f"{spec.name} generates a multiple of {stride} frames, plus 1; try {nearest}",
        )


def _most_frames(spec: ModelAbilities) -> str:
    if spec.is_audio:
        return "makes sounds; leave num_frames out"
    return f"generates at most {spec.max_frames} frames" if spec.is_video else "generates single images"


def _check_seconds(spec: ModelAbilities, params: GenerationParams) -> None:
    """Refuse a sound that is longer than the model makes them."""
    if spec.is_audio and (params.seconds or 0) > spec.max_seconds:
        remedy = f"{spec.name} makes sounds of at most {spec.max_seconds:g} s"
        raise ModelNotCapable("seconds", params.seconds, remedy)


def _check_images(spec: ModelAbilities, params: GenerationParams) -> None:
    """Refuse input images that the model cannot use, or the lack of one that it needs."""
    count = len(params.images)
    if count > spec.max_input_images:
        ability = (
            f"takes at most {spec.max_input_images}; leave the others out"
            if spec.max_input_images
            else "takes no image; leave it out"
        )
        raise ModelNotCapable("image", count, f"{spec.name} {ability}")
    if count < spec.min_input_images:
        raise InvalidParams("image", count or None, f"{spec.name} needs an image to work on; give image")
    prompts = len(params.prompt_images)
    if prompts > spec.max_image_prompts > 0:
        remedy = f"{spec.name} reads at most {spec.max_image_prompts} image prompts; leave the others out"
        raise ModelNotCapable("image_prompts", prompts, remedy)
    _check_references(spec, params)
    _check_mask_fits(params)


def _check_references(spec: ModelAbilities, params: GenerationParams) -> None:
    """Refuse references that are too small, or too long for their width to be scaled."""
    for image in spec.references(params):
        short, long = sorted((image.width, image.height))
        if short < spec.min_reference_side:
            remedy = f"{spec.name} reads references of at least {spec.min_reference_side} pixels a side"
        elif spec.scales_references and long > _MAX_REFERENCE_RATIO * short:
            remedy = f"{spec.name} reads references at most {_MAX_REFERENCE_RATIO} times as long as wide"
        else:
            continue
        raise InvalidParams("image", f"{image.width}x{image.height}", f"{remedy}; send another one")


def _check_strength(spec: ModelAbilities, params: GenerationParams) -> None:
    if params.strength is not None and not spec.starts_from_image(params):
        remedy = f"{spec.name} takes images as references; give a mask too, or leave strength out"
        raise ModelNotCapable("strength", params.strength, remedy)
    if params.strength is not None and spec.steps_taken(params) < 1:
        raise InvalidParams(
            "strength",
            params.strength,
            f"leaves none of {params.num_inference_steps} steps; give at least "
            f"{min_strength(params.num_inference_steps or 1):g}, or more num_inference_steps",
        )


def _check_mask_fits(params: GenerationParams) -> None:
    """Refuse a mask of other proportions than the image: it would be stretched over other parts of it."""
    image, mask = params.images[0] if params.images else None, params.mask
    if not isinstance(image, InputImage) or not isinstance(mask, InputImage):
        return
    if not image.fits(mask.width, mask.height):
        raise InvalidParams(
            "mask",
            f"{mask.width}x{mask.height}",
            f"does not fit the image of {image.width}x{image.height}; send a mask of the same size",
        )
