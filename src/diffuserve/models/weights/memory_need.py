"""The memory that a model's weights take on a device, by the headers of its files.

Importing this loads no torch.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.layers.quantized.quantized_layers import QuantizedLayers
from diffuserve.models.weights.stored_tensors import StoredTensor, stored_tensors

_LAYER = re.compile(r"(.*?\.\d+)\.")
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
# Codes, and what brings them back: a scale for each row, or a scale and an offset for each 64 numbers.
_ITEM_BYTES = {Quantization.INT8: 1.0, Quantization.FP8: 1.0, Quantization.INT4: 0.5 + 4 / 64}
_ROW_BYTES = {Quantization.INT8: 4, Quantization.FP8: 4, Quantization.INT4: 0}
_TEXT_SLOTS, _SLOTS = 2, 3


@dataclass(frozen=True)
class PartBytes:
    """Bytes of a component's weights: in all, and of its largest layer among those that are streamed."""

    name: str
    total: int
    layered: int
    largest_layer: int

    @property
    def is_text(self) -> bool:
        return self.name.startswith("text_encoder")

    def streamed(self, num_slots: int) -> int:
        """Return the bytes on the device while only so many layers are there at a time."""
        return self.total - self.layered + min(self.layered, num_slots * self.largest_layer)


@dataclass(frozen=True)
class MemoryNeed:
    """The bytes of weights that are on the device at once, by how they are kept."""

    quantization: Quantization
    offload: Offload
    num_bytes: int

    @property
    def flags(self) -> str:
        """Return the options that ask for it, "" for none."""
        wanted = {"quantization": self.quantization, "offload": self.offload}
        return " ".join(f"--{name} {value}" for name, value in wanted.items() if value != "none")


def part_bytes(
    name: str, files: Iterable[Path], item_bytes: int, layers: QuantizedLayers | None, kind: Quantization
) -> PartBytes:
    """Return what a component takes with floating-point numbers of `item_bytes`, and quantized to `kind`."""
    by_layer: Counter[str] = Counter()
    for file in files:
        for tensor_name, tensor in stored_tensors(file).items():
            layer = _LAYER.match(tensor_name)
            loaded = _loaded_bytes(tensor_name, tensor, item_bytes, layers, kind)
            by_layer[layer.group(1) if layer else ""] += loaded
    total, outside = by_layer.total(), by_layer.pop("", 0)
    return PartBytes(name, total, total - outside, max(by_layer.values(), default=0))


def bytes_on_device(parts: Iterable[PartBytes], offload: Offload) -> int:
    """Return the weights that are on the device at once; a last part is the autoencoder, which is whole."""
    parts = list(parts)
    if offload is Offload.MODEL:
        return max(part.total for part in parts)
    return sum(_part_on_device(part, offload) for part in parts)


def memory_needs(
    by_quantization: Mapping[Quantization, list[PartBytes]], offloads: Iterable[Offload]
) -> list[MemoryNeed]:
    """Return each way to keep the weights, the one that costs least speed first."""
    offloads = list(offloads)
    return [
        MemoryNeed(kind, offload, bytes_on_device(parts, offload))
        for offload in offloads
        for kind, parts in by_quantization.items()
    ]


def _part_on_device(part: PartBytes, offload: Offload) -> int:
    if part.is_text and offload in (Offload.TEXT, Offload.LAYERS):
        return part.streamed(_TEXT_SLOTS)
    if offload is Offload.LAYERS and part.name != "vae":
        return part.streamed(_SLOTS)
    return part.total


def _loaded_bytes(
    name: str, tensor: StoredTensor, item_bytes: int, layers: QuantizedLayers | None, kind: Quantization
) -> int:
    """Return the bytes of a tensor once it is loaded; quantized ones stay as they are."""
    if tensor.dtype not in _FLOATS:
        return tensor.num_bytes
    layer, _, attribute = name.rpartition(".")
    is_weight = attribute == "weight" and len(tensor.shape) > 1
    kept = layers.kind_of(layer, kind) if layers and is_weight else Quantization.NONE
    count = math.prod(tensor.shape)
    if kept is Quantization.NONE:
        return count * item_bytes
    return round(count * _ITEM_BYTES[kept] + tensor.shape[0] * _ROW_BYTES[kept])
