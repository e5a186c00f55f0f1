"""Loading of packed transformers."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch

from diffuserve.models.families.packed_images.transformer import PackedTransformer
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.linear import check_deterministic_width, cpu_tilings, name_layers
from diffuserve.models.layers.quantized.quantized_layers import QuantizedLayers
from diffuserve.models.layers.quantized.quantized_linear import quantize_layers
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import load_weights

Transformer = TypeVar("Transformer", bound=PackedTransformer)


def load_transformer(
    make: Callable[[], Transformer],
    layers: QuantizedLayers,
    folder: ModelFolder,
    plan: LoadPlan,
    ignored_prefixes: tuple[str, ...] = (),
) -> Transformer:
    """Return a folder's transformer, which `make` builds; `layers` are those that may be quantized.

    Tensors whose names begin with one of `ignored_prefixes` belong to another part. Raise `InvalidModel` for
    tensors that do not fit, and for a width that deterministic mode does not know.
    """
    files = folder.weights("transformer")
    transformer = load_packed(make, layers, files, plan, ignored_prefixes)
    if plan.deterministic:
        check_deterministic_width(transformer.shape.dim, folder.path)
    return transformer


def load_packed(
    make: Callable[[], Transformer],
    layers: QuantizedLayers,
    files: Sequence[Path],
    plan: LoadPlan,
    ignored_prefixes: tuple[str, ...] = (),
) -> Transformer:
    """Return a transformer with the weights of some files. Raise `InvalidModel` for others."""
    with torch.device("meta"):
        transformer = make()
        quantize_layers(transformer, layers, plan.kept_in)
        if plan.ranks is not None and plan.ranks.tensor is not None:
            transformer.share_weights(plan.ranks.tensor)
    load_weights(transformer, files, transformer.placements(), plan, ignored_prefixes)
    name_layers(transformer)
    if plan.device.type == "cpu":
        transformer.set_tiling(*cpu_tilings(plan.deterministic))
    return transformer.eval()
