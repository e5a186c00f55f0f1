"""What a tensor of an adapter file is, by the ending of its name. Importing this loads no torch."""

from enum import Enum, auto
from typing import Final, NamedTuple


class TensorRole(Enum):
    """What a tensor is to the layer that it changes.

    `DOWN` and `UP` are matrices, whose products `ALPHA` scales, and with them the bias of `UP`. What is added
    to a layer's own bias or weight is not scaled.
    """

    DOWN = auto()
    UP = auto()
    ALPHA = auto()
    DOWN_BIAS = auto()
    UP_BIAS = auto()
    BIAS_CHANGE = auto()
    CHANGE = auto()


class NamedPart(NamedTuple):
    """A tensor's role, and the name of its layer in the file, with the file's own prefix."""

    module: str
    role: TensorRole


_ENDINGS: Final = (
    (".lora_linear_layer.down.weight", TensorRole.DOWN),
    (".lora_linear_layer.up.weight", TensorRole.UP),
    (".lora.down.weight", TensorRole.DOWN),
    (".lora.up.weight", TensorRole.UP),
    (".lora_A.default_0.weight", TensorRole.DOWN),
    (".lora_B.default_0.weight", TensorRole.UP),
    (".lora_A.default.weight", TensorRole.DOWN),
    (".lora_B.default.weight", TensorRole.UP),
    (".lora_A.weight", TensorRole.DOWN),
    (".lora_B.weight", TensorRole.UP),
    (".lora_down.weight", TensorRole.DOWN),
    (".lora_up.weight", TensorRole.UP),
    (".down.weight", TensorRole.DOWN),  # of XLabs and of diffusers' former attention processors
    (".up.weight", TensorRole.UP),
    (".alpha", TensorRole.ALPHA),
    (".lora_A.bias", TensorRole.DOWN_BIAS),
    (".lora_B.bias", TensorRole.UP_BIAS),
    (".diff_b", TensorRole.BIAS_CHANGE),
    (".diff", TensorRole.CHANGE),
)
"""Endings that are read; one that ends with another stands before it."""

_OTHER_METHODS: Final = (
    (("dora_scale", "lora_magnitude_vector"), "a magnitude of DoRA"),
    (("lokr_",), "a factor of LoKr"),
    (("hada_",), "a factor of LoHa"),
    (("lora_mid",), "the core of a Tucker decomposition"),
    (("oft_", "boft_"), "a rotation of OFT"),
    (("on_input", "ia3_"), "a factor of IA³"),
    (("query_norm.scale", "key_norm.scale"), "a norm of a control adapter, which draws by control images"),
    (("image_proj.", "ip_adapter."), "part of an IP-Adapter, which gives a model pictures"),
)


def part_of(name: str) -> NamedPart | None:
    """Return what a tensor is; `None` if its name has no ending that is known."""
    for ending, role in _ENDINGS:
        if name.endswith(ending) and name != ending:
            return NamedPart(name.removesuffix(ending), role)
    return None


def other_method(name: str) -> str | None:
    """Return in words what a tensor is that belongs to another method than LoRA; `None` for all others."""
    return next((what for marks, what in _OTHER_METHODS if any(mark in name for mark in marks)), None)
