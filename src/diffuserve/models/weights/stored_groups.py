"""Groups that share a scale in stored weights: quantized layers take over those of their files."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn

from diffuserve.domain.models.quantization import SMALL_GROUP, Quantization
from diffuserve.models.layers.quantized.quantization import GROUP, group_size, quantize_weight
from diffuserve.models.layers.quantized.quantized_linear import QuantizedLinear
from diffuserve.models.weights.stored_quantization import stored_weights

log = logging.getLogger(__name__)

_Grouped = tuple[Quantization, int]


def adopt_groups(module: nn.Module, files: Sequence[Path], parameters: Mapping[str, str]) -> None:
    """Give the layers of a module on the meta device the kinds and groups of weights that have small ones.

    `parameters` has those that the files' tensors fill, by the tensors' names. A product whose parts differ
    becomes 8-bit integers, which hold each of them.
    """
    found: dict[str, set[_Grouped]] = {}
    for name, grouped in _grouped_weights(files):
        if name in parameters:
            found.setdefault(parameters[name], set()).add(grouped)
    num_adopted = 0
    for parameter, kinds in found.items():
        layer = module.get_submodule(parameter.rpartition(".")[0])
        if isinstance(layer, QuantizedLinear) and kinds != {(Quantization.INT4, GROUP)}:
            kind, group = kinds.pop() if len(kinds) == 1 else (Quantization.INT8, SMALL_GROUP)
            if layer.in_features % group:
                continue  # the weight's shape is wrong, which is told where it is read
            empty = torch.empty(layer.out_features, layer.in_features, dtype=layer.dtype, device="meta")
            layer.keep(quantize_weight(empty, kind, group))
            num_adopted += 1
    if num_adopted:
        log.info(
            "%s: %d products keep the groups of %d numbers of its files: each step unpacks them, which takes "
            "longer than `int8` or `fp8` of plain weights",
            files[0].parent,
            num_adopted,
            SMALL_GROUP,
        )


def _grouped_weights(files: Sequence[Path]) -> Iterator[tuple[str, _Grouped]]:
    """Yield the weights whose scales are by group, with their kinds and the sizes of their groups."""
    for file in files:
        with safe_open(file, framework="pt") as reader:
            for stored in stored_weights(reader.keys()):
                if stored.scale is None:
                    continue
                codes, scale = (reader.get_slice(name).get_shape() for name in (stored.tensor, stored.scale))
                kind = Quantization.INT8 if stored.zero is None else Quantization.INT4
                if (group := group_size(kind, codes, scale)) is not None:
                    yield stored.name, (kind, group)
