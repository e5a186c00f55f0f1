"""The nodes of ComfyUI that this server does, as it lists them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from diffuserve.domain.requests.request_bounds import (
    MAX_GUIDANCE_SCALE,
    MAX_IMAGES,
    MAX_PROMPT_CHARACTERS,
    MAX_SEED,
    MAX_SIDE,
    MAX_STEPS,
)


class Listed(StrEnum):
    """What an input has to be one of."""

    MODELS = "models"
    ADAPTERS = "adapters"
    CONTROLNETS = "controlnets"
    SAMPLERS = "samplers"
    SCHEDULERS = "schedulers"
    IMAGES = "images"


SAMPLERS: Final[Mapping[str, tuple[str, ...]]] = {
    "euler": ("euler", "flow_match_euler"),
    "euler_ancestral": ("euler_ancestral",),
    "heun": ("flow_match_heun",),
    "dpmpp_2m": ("dpmpp_2m",),
    "dpmpp_2m_sde": ("dpmpp_2m_sde",),
    "ddim": ("ddim",),
    "lcm": ("lcm",),
    "uni_pc": ("unipc",),
}
"""By ComfyUI's name: our samplers, of which a model has one at most."""
SCHEDULERS: Final = ("normal", "simple", "karras", "sgm_uniform")

Input = str | Listed | tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class NodeType:
    """A kind of node: its inputs by name, and the types of its outputs."""

    inputs: Mapping[str, Input]
    outputs: Sequence[str] = ()
    category: str = "sampling"
    is_last: bool = False
    optional: Sequence[str] = field(default=())


def _number(kind: str, default: float, low: float, high: float) -> Input:
    return kind, {"default": default, "min": low, "max": high}


_TEXT: Final = ("STRING", {"multiline": True, "maxLength": MAX_PROMPT_CHARACTERS})
_STRENGTH = _number("FLOAT", 1.0, -10.0, 10.0)
_LATENT: Final[Mapping[str, Input]] = {
    "width": _number("INT", 512, 1, MAX_SIDE),
    "height": _number("INT", 512, 1, MAX_SIDE),
    "batch_size": _number("INT", 1, 1, MAX_IMAGES),
}

NODES: Final[Mapping[str, NodeType]] = {
    "CheckpointLoaderSimple": NodeType(
        inputs={"ckpt_name": Listed.MODELS}, outputs=("MODEL", "CLIP", "VAE"), category="loaders"
    ),
    "UNETLoader": NodeType(inputs={"unet_name": Listed.MODELS}, outputs=("MODEL",), category="loaders"),
    "LoraLoader": NodeType(
        inputs={
            "model": "MODEL",
            "clip": "CLIP",
            "lora_name": Listed.ADAPTERS,
            "strength_model": _STRENGTH,
            "strength_clip": _STRENGTH,
        },
        outputs=("MODEL", "CLIP"),
        category="loaders",
    ),
    "LoraLoaderModelOnly": NodeType(
        inputs={"model": "MODEL", "lora_name": Listed.ADAPTERS, "strength_model": _STRENGTH},
        outputs=("MODEL",),
        category="loaders",
    ),
    "ControlNetLoader": NodeType(
        inputs={"control_net_name": Listed.CONTROLNETS}, outputs=("CONTROL_NET",), category="loaders"
    ),
    "CLIPTextEncode": NodeType(
        inputs={"text": _TEXT, "clip": "CLIP"}, outputs=("CONDITIONING",), category="conditioning"
    ),
    "ConditioningZeroOut": NodeType(
        inputs={"conditioning": "CONDITIONING"}, outputs=("CONDITIONING",), category="conditioning"
    ),
    "FluxGuidance": NodeType(
        inputs={
            "conditioning": "CONDITIONING",
            "guidance": _number("FLOAT", 3.5, 0, MAX_GUIDANCE_SCALE),
        },
        outputs=("CONDITIONING",),
        category="conditioning",
    ),
    "ControlNetApplyAdvanced": NodeType(
        inputs={
            "positive": "CONDITIONING",
            "negative": "CONDITIONING",
            "control_net": "CONTROL_NET",
            "image": "IMAGE",
            "strength": _number("FLOAT", 1.0, 0.0, 2.0),
            "start_percent": _number("FLOAT", 0.0, 0.0, 1.0),
            "end_percent": _number("FLOAT", 1.0, 0.0, 1.0),
        },
        outputs=("CONDITIONING", "CONDITIONING"),
        category="conditioning",
    ),
    "EmptyLatentImage": NodeType(inputs=_LATENT, outputs=("LATENT",), category="latent"),
    "EmptySD3LatentImage": NodeType(inputs=_LATENT, outputs=("LATENT",), category="latent"),
    "LoadImage": NodeType(inputs={"image": Listed.IMAGES}, outputs=("IMAGE", "MASK"), category="image"),
    "LoadImageMask": NodeType(
        inputs={"image": Listed.IMAGES, "channel": "STRING"}, outputs=("MASK",), category="mask"
    ),
    "VAEEncode": NodeType(inputs={"pixels": "IMAGE", "vae": "VAE"}, outputs=("LATENT",), category="latent"),
    "VAEEncodeForInpaint": NodeType(
        inputs={"pixels": "IMAGE", "vae": "VAE", "mask": "MASK"}, outputs=("LATENT",), category="latent"
    ),
    "SetLatentNoiseMask": NodeType(
        inputs={"samples": "LATENT", "mask": "MASK"}, outputs=("LATENT",), category="latent"
    ),
    "RepeatLatentBatch": NodeType(
        inputs={"samples": "LATENT", "amount": _number("INT", 1, 1, MAX_IMAGES)},
        outputs=("LATENT",),
        category="latent",
    ),
    "KSampler": NodeType(
        inputs={
            "model": "MODEL",
            "seed": _number("INT", 0, 0, MAX_SEED),
            "steps": _number("INT", 20, 1, MAX_STEPS),
            "cfg": _number("FLOAT", 8.0, 0, MAX_GUIDANCE_SCALE),
            "sampler_name": Listed.SAMPLERS,
            "scheduler": Listed.SCHEDULERS,
            "positive": "CONDITIONING",
            "negative": "CONDITIONING",
            "latent_image": "LATENT",
            "denoise": _number("FLOAT", 1.0, 0.0, 1.0),
        },
        outputs=("LATENT",),
    ),
    "VAEDecode": NodeType(inputs={"samples": "LATENT", "vae": "VAE"}, outputs=("IMAGE",), category="latent"),
    "SaveImage": NodeType(
        inputs={"images": "IMAGE", "filename_prefix": ("STRING", {"default": "ComfyUI"})},
        category="image",
        is_last=True,
    ),
    "PreviewImage": NodeType(inputs={"images": "IMAGE"}, category="image", is_last=True),
    "SaveImageWebsocket": NodeType(inputs={"images": "IMAGE"}, category="api/image", is_last=True),
}
"""What a prompt may be made of. Loaders of text encoders and VAEs count for nothing: a model has its own."""


def object_info(name: str, listed: Mapping[Listed, Sequence[str]]) -> dict[str, Any]:
    """Return what ComfyUI tells of a node, given what there is of each list."""
    node = NODES[name]
    required = {key: _input(kind, listed) for key, kind in node.inputs.items()}
    return {
        "input": {"required": required},
        "input_order": {"required": list(required)},
        "output": list(node.outputs),
        "output_is_list": [False] * len(node.outputs),
        "output_name": list(node.outputs),
        "name": name,
        "display_name": name,
        "description": "",
        "python_module": "nodes",
        "category": node.category,
        "output_node": node.is_last,
    }


def _input(kind: Input, listed: Mapping[Listed, Sequence[str]]) -> list[Any]:
    if isinstance(kind, Listed):
        return [list(listed[kind])]
    return list(kind) if isinstance(kind, tuple) else [kind]
