"""The abilities of a folder's pipeline: by the class's signature and the configs of its components."""

import ast
import math
from typing import Any, Final

from diffuserve.domain.models.config import parse_config
from diffuserve.domain.requests.request_bounds import MAX_GUIDANCE_SCALE, MAX_INPUT_IMAGES, MAX_STEPS
from diffuserve.models.families.any_pipeline.reading.configs import (
    AUTOENCODERS,
    DENOISERS,
    AutoencoderSizes,
    DenoiserSizes,
    TokenizerSizes,
    read_sizes,
)
from diffuserve.models.families.any_pipeline.reading.layers import layers, multiple_of_layers
from diffuserve.models.families.any_pipeline.reading.signature import Signature
from diffuserve.models.families.any_pipeline.reading.sounds import sounds
from diffuserve.models.families.any_pipeline.reading.tasks import (
    CONTROL_SCALES,
    CONTROL_TIMES,
    FRAMES,
    LAST_FRAMES,
    MASKS,
    RATES,
    control_argument,
    draws_without,
    image_argument,
    takes_several,
)
from diffuserve.models.folders.folder import ModelFolder

FAMILY: Final = "any_pipeline"
_SIDE, _MAX_SIDE, _MAX_PIXELS = 1024, 4096, 16 * 1024 * 1024
_STEPS, _RATE = 50, 16
_TOKENS, _MOST_TOKENS = 77, 4096
_LATENT_FRAMES = 15  # of a clip, if nothing says how long it is
_PATCH = 2  # of pipelines that pack latents by themselves, as their config does not say


def describe(folder: ModelFolder, signature: Signature) -> dict[str, Any]:
    """Return the fields of a folder's spec. Raise `InvalidModel` for a config that is out of bounds."""
    vae = read_sizes(folder, AUTOENCODERS, AutoencoderSizes)
    denoiser = read_sizes(folder, DENOISERS, DenoiserSizes)
    scale = vae.scale if {*AUTOENCODERS} & {*signature.components} else 1
    return {
        "family": FAMILY,
        "has_joint_attention": "unet" not in signature.components,
        **_sizes(signature, denoiser, scale),
        **_steps(signature),
        **_guidance(folder, signature, denoiser),
        **_text(folder, signature),
        **_clips(signature, vae, denoiser),
        **images(signature),
        **layers(signature),
        **_control(signature),
        **sounds(folder, signature, denoiser.sample[0] if denoiser.sample else None),
    }


def guidance(signature: Signature) -> dict[str, Any]:
    """Return whether and how a class guides: by two passes above a threshold, or by an input of its model."""
    takes, name = signature.arguments, signature.guidance
    if name not in takes:
        return {"has_guidance": False}
    threshold = signature.guided_above.get(name)
    if threshold is None and "negative_prompt" in takes and not signature.guided_above:
        threshold = 1.0  # a class that calls another one, which guides
    return {
        "has_guidance": True,
        "guidance_scale": min(max(_number(signature.default(name), 0), 0.0), MAX_GUIDANCE_SCALE),
        "guidance_passes": 1 if threshold is None else 2,
        "guided_above": 1.0 if threshold is None else threshold,
        "has_negative_prompt": threshold is not None and "negative_prompt" in takes,
    }


def _guidance(folder: ModelFolder, signature: Signature, denoiser: DenoiserSizes) -> dict[str, Any]:
    """Return how a checkpoint is guided: one that was distilled not at all, or by an input of its model."""
    if folder.index.get("is_distilled") is True:
        return {"has_guidance": False}
    by_input = {"guidance_passes": 1, "has_negative_prompt": False}
    return guidance(signature) | (by_input if denoiser.time_cond_proj_dim is not None else {})


def _steps(signature: Signature) -> dict[str, Any]:
    steps = int(_number(signature.default("num_inference_steps"), _STEPS))
    return {"num_inference_steps": min(max(steps, 1), MAX_STEPS)}


def _sizes(signature: Signature, denoiser: DenoiserSizes, scale: int) -> dict[str, Any]:
    """Return the default size, and limits of four times its pixels; a class without sizes has one alone."""
    multiple = _multiple(signature, denoiser, scale)
    sample = denoiser.sample or (signature.own_defaults.get("sample_size", 0),) * 2
    own = [side * scale or _SIDE for side in sample]
    width, height = (
        _rounded(_number(signature.default(name), signature.own_defaults.get(name, side)), multiple)
        for name, side in zip(("width", "height"), own, strict=True)
    )
    longest = max(width, height)
    is_fixed = "width" not in signature.arguments and image_argument(signature) is None
    return {
        "width": width,
        "height": height,
        "size_multiple": multiple,
        "pixels_per_token": _token_side(signature, denoiser, scale) ** 2,
        "min_size": min(width, height) if is_fixed else multiple,
        "max_size": longest if is_fixed else max(longest, min(2 * longest, _MAX_SIDE)),
        "max_pixels": max(width * height, min(4 * width * height, _MAX_PIXELS)),
    }


def _rounded(side: float, multiple: int) -> int:
    return max(int(side) // multiple, 1) * multiple


def _token_side(signature: Signature, denoiser: DenoiserSizes, scale: int) -> int:
    """Return the pixels of a token's side; a side of an image may have to be a multiple of more."""
    return scale if "unet" in signature.components else scale * (denoiser.patch or _PATCH)


def _multiple(signature: Signature, denoiser: DenoiserSizes, scale: int) -> int:
    """Return what divides both sides: what the class checks, and what its patches need."""
    known = {"patch_size": denoiser.patch or _PATCH}
    own = _token_side(signature, denoiser, scale)
    found = [_value(ast.parse(each, mode="eval").body, known, scale) for each in signature.multiples]
    return math.lcm(own, multiple_of_layers(signature), *(value or _PATCH * scale for value in found))


def _value(node: ast.expr, known: dict[str, int], scale: int) -> int | None:
    """Return the value of an expression over the scale of the autoencoder; `None` for others."""
    match node:
        case ast.Constant(value=int() as value) if 0 < value <= _MAX_SIDE:
            return value
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in known:
            return known[name]
        case ast.Name(id=name) | ast.Attribute(attr=name) if name.startswith("vae_s") and name != "vae_scale":
            return scale
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            factors = _value(left, known, scale), _value(right, known, scale)
            return None if None in factors else (factors[0] or 1) * (factors[1] or 1)
    return None


def _text(folder: ModelFolder, signature: Signature) -> dict[str, Any]:
    """Return how many tokens of a prompt are read: the call's own, or what the tokenizer reads."""
    given = signature.default("max_sequence_length")
    length = int(_number(given, _tokenizer_length(folder)))
    most = signature.most_tokens or (max(length, 512) if given is not None else length)
    return {"max_sequence_length": length, "longest_sequence_length": max(most, length)}


def _tokenizer_length(folder: ModelFolder) -> int:
    path = "tokenizer/tokenizer_config.json"
    if not (folder.path / path).is_file():
        return _TOKENS
    read = parse_config(TokenizerSizes, folder.json(path), f"{folder.path}/{path}").model_max_length
    return _TOKENS if read is None or read > _MOST_TOKENS else int(read)


def _clips(signature: Signature, vae: AutoencoderSizes, denoiser: DenoiserSizes) -> dict[str, Any]:
    if signature.first(*FRAMES) is None:
        return {}
    stride = 1 if "motion_adapter" in signature.components or "unet" in signature.components else vae.stride
    frames = int(_number(signature.default(*FRAMES), denoiser.sample_frames or _LATENT_FRAMES * stride + 1))
    frames = (max(frames, stride + 1) - 1) // stride * stride + 1
    return {
        "num_frames": frames,
        "max_frames": max(2 * frames - 1, 2),
        "temporal_stride": stride,
        "fps": int(_number(signature.default(*RATES), signature.rate or _RATE)),
    }


def images(signature: Signature) -> dict[str, Any]:
    """Return what images a request may have, and what they are to the model."""
    image, mask = image_argument(signature), signature.first(*MASKS)
    if image is None:
        return {}
    needs_none = draws_without(signature, image)
    most = MAX_INPUT_IMAGES if takes_several(signature, image) else 1
    has_mask = mask is not None and "video" not in signature.arguments
    return {
        "min_input_images": int(not needs_none),
        "max_input_images": most,
        "has_mask": has_mask,
        "needs_mask": has_mask and not draws_without(signature, mask or ""),
        "has_first_frame": signature.first(*FRAMES) is not None and most == 1,
        "has_last_frame": signature.first(*LAST_FRAMES) is not None,
        **_strength(signature),
    }


def _strength(signature: Signature) -> dict[str, Any]:
    if "strength" not in signature.arguments or signature.first(*FRAMES) is not None:
        return {}
    default = min(max(_number(signature.default("strength"), 0.8), 0.01), 1.0)
    return {"has_strength": True, "strength": default, "mask_strength": default}


def _control(signature: Signature) -> dict[str, Any]:
    """Return whether a model draws along an image that says where things are, and whether it has to."""
    control = control_argument(signature)
    if control is None:
        return {}
    return {
        "has_control_image": True,
        "needs_control_image": not signature.may_lack(control, otherwise=False),
        "control_scale": _number(signature.default(*CONTROL_SCALES), 1),
        **_controlnet(signature),
    }


def _controlnet(signature: Signature) -> dict[str, Any]:
    """Return the ControlNet of a class that acts in some of the steps; kinds of images it knows but one."""
    is_timed = {*CONTROL_TIMES} <= {*signature.arguments}
    if not is_timed or "controlnet" not in signature.components or "control_mode" in signature.arguments:
        return {}
    return {"controlnets": ("controlnet",), "control_modes": (0,)}


def _number(value: object, otherwise: int | float) -> float:
    """Return a default of the source if it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return float(otherwise)
    return float(value)
