"""Random adapters for the transformers of small checkpoints."""

import json
from collections.abc import Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import diffusers
import torch
from torch import nn

from diffuserve.models.layers.adapted.lora_pair import LoraPair

Pairs = Mapping[str, LoraPair]


@cache
def transformer_of(folder: Path) -> Any:
    index = json.loads((folder / "model_index.json").read_text())
    return getattr(diffusers, index["transformer"][1]).from_pretrained(
        folder / "transformer", local_files_only=True, trust_remote_code=False
    )


def linear_layers(folder: Path) -> dict[str, nn.Linear]:
    layers = transformer_of(folder).named_modules()
    return {name: layer for name, layer in layers if isinstance(layer, nn.Linear)}


def random_pair(layer: nn.Linear | nn.Conv2d, rank: int, seed: int, gain: float = 0.3) -> LoraPair:
    generator = torch.Generator().manual_seed(seed)
    outputs, *rest = layer.weight.shape
    down = torch.randn(rank, *rest, generator=generator) / prod(rest) ** 0.5
    up = gain * torch.randn(outputs, rank, *[1] * len(rest[1:]), generator=generator) / rank**0.5
    return LoraPair(down, up, scale=0.5 + seed % 2)


@cache
def random_pairs(folder: Path, rank: int, seed: int) -> Pairs:
    return {
        name: random_pair(layer, rank, seed + i)
        for i, (name, layer) in enumerate(linear_layers(folder).items())
    }
