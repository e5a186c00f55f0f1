"""Reads a planned adapter from its file."""

import math
from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from diffuserve.domain.errors import InvalidAdapter, InvalidModel
from diffuserve.models.adapters.files.adapter_plan import AdapterPlan, PlannedPair
from diffuserve.models.checkpoint_files.checkpoint_file import CheckpointFile
from diffuserve.models.layers.adapted.lora_pair import LoraPair

Pairs = dict[str, LoraPair]


def read_adapter(plan: AdapterPlan) -> dict[str, Pairs]:
    """Return an adapter's pairs by component, and by the layer's name in that module of diffusers.

    Layers that share a matrix in the file share it in memory. Raise `InvalidAdapter` with the tensor's name
    if a number is not finite, or the file cannot be read any more.
    """
    return {component: _read(plan, component, pairs) for component, pairs in plan.pairs.items()}


def _read(plan: AdapterPlan, component: str, planned: Mapping[str, PlannedPair]) -> Pairs:
    alphas = _alphas(plan, planned)
    stated = plan.scales.get(component)
    tensors: dict[str, Tensor] = {}
    pairs: Pairs = {}
    for layer, pair in planned.items():
        for name in (pair.down, pair.up, pair.bias):
            if name is not None and name not in tensors:
                tensors[name] = _finite(plan.file, name)
        alpha = alphas.get(layer)
        scale = 1.0 if alpha is None else alpha / pair.rank
        if stated is not None:
            scale = stated.of(layer, pair.rank)
        up = torch.eye(pair.rank) if pair.up is None else tensors[pair.up]
        bias = None if pair.bias is None else _own_rows(pair, tensors[pair.bias])
        if bias is not None and pair.is_scaled:
            bias = bias * scale
        pairs[layer] = LoraPair(tensors[pair.down], _own_rows(pair, up), scale, bias)
    return pairs


def _alphas(plan: AdapterPlan, planned: Mapping[str, PlannedPair]) -> dict[str, float]:
    """Return alphas by layer; where some lack one, and the family completes them, the commonest."""
    given = {
        layer: float(_finite(plan.file, pair.alpha))
        for layer, pair in planned.items()
        if pair.alpha is not None
    }
    if not given or not plan.layout.completes_alphas:
        return given
    [(commonest, _)] = Counter(given.values()).most_common(1)
    return {layer: given.get(layer, commonest) for layer in planned}


def _own_rows(pair: PlannedPair, whole: Tensor) -> Tensor:
    pieces = [whole[rows] for rows in pair.target.rows(whole.shape[0])]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _finite(file: CheckpointFile, name: str) -> Tensor:
    try:
        tensor = file.read(name)
    except InvalidModel as error:
        raise InvalidAdapter(str(error)) from error
    if not math.isfinite(float(tensor.float().abs().sum(dtype=torch.float64))):
        raise InvalidAdapter(f"{file.path}: {name} has numbers that are not finite")
    return tensor
