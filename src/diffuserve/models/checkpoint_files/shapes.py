"""What the shapes of a transformer's tensors say of its config. Importing this loads no torch.

A file may hold fewer blocks than the model that gives its other parts, or read more channels.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from diffuserve.models.checkpoint_files.kinds import Tensors

Values = dict[str, Any]

_MAX_BLOCKS = 512


def derive_config(converter: str, tensors: Tensors, config: Values) -> Values:
    """Return the config of a component, where the shapes of its tensors say something else, by them.

    `tensors` are those of the authors' layout, without their prefix; `config` is the base's.
    """
    derive = _DERIVATIONS.get(converter)
    return config if derive is None else {**config, **derive(tensors, config)}


def _count(tensors: Tensors, pattern: str) -> int:
    """Return the number of blocks that a pattern with one number in it tells. Raise `ValueError`."""
    found = (re.match(pattern, name) for name in tensors)
    count = 1 + max((int(match[1]) for match in found if match), default=-1)
    if count > _MAX_BLOCKS:
        raise ValueError(f"{count:,} blocks, where models have at most {_MAX_BLOCKS}")
    return count


def _unet(tensors: Tensors, config: Values) -> Values:
    return {"in_channels": tensors["input_blocks.0.0.weight"].shape[1]}


def _flux(tensors: Tensors, config: Values) -> Values:
    channels, outputs = tensors["img_in.weight"].shape[1], tensors["final_layer.linear.weight"].shape[0]
    return {
        "in_channels": channels,
        "out_channels": outputs if outputs != channels else config.get("out_channels"),
        "num_layers": _count(tensors, r"double_blocks\.(\d{1,9})\."),
        "num_single_layers": _count(tensors, r"single_blocks\.(\d{1,9})\."),
        "guidance_embeds": "guidance_in.in_layer.weight" in tensors,
    }


def _wan(tensors: Tensors, config: Values) -> Values:
    return {
        "in_channels": tensors["patch_embedding.weight"].shape[1],
        "num_layers": _count(tensors, r"blocks\.(\d{1,9})\."),
    }


def _z_image(tensors: Tensors, config: Values) -> Values:
    return {"n_layers": _count(tensors, r"layers\.(\d{1,9})\.")}


def _qwen_image(tensors: Tensors, config: Values) -> Values:
    return {"num_layers": _count(tensors, r"transformer_blocks\.(\d{1,9})\.")}


_DERIVATIONS: Final[Mapping[str, Callable[[Tensors, Values], Values]]] = {
    "unet": _unet,
    "flux": _flux,
    "wan": _wan,
    "z_image": _z_image,
    "as_it_is": _qwen_image,
}
