"""Cross-attention to the tokens of image prompts, beside that to the prompt's.

The reference implementation is diffusers' `IPAdapterAttnProcessor2_0`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from diffuserve.models.families.stable_diffusion.config import UNetConfig
from diffuserve.models.families.stable_diffusion.image_prompts.ip_adapter import (
    PROJECTION,
    IpAdapter,
    attention_name,
    cross_attentions,
)
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import Placement, load_weights

Heads = Float[Tensor, "rows heads positions head_dim"]


@dataclass(frozen=True)
class ImageTokens:
    """The tokens of the images of one row, and how much they count."""

    states: Float[Tensor, "tokens text_dim"]
    weight: float


@dataclass(frozen=True)
class ImageRun:
    """Consecutive rows, from `start`, with equally many tokens of images and one weight."""

    start: int
    states: Float[Tensor, "rows tokens text_dim"]
    weight: float


def image_runs(rows: Sequence[ImageTokens | None]) -> tuple[ImageRun, ...]:
    """Return the runs of the rows that have image prompts."""
    runs, start = [], 0
    for _, group in groupby(rows, lambda row: row and (len(row.states), row.weight)):
        members = [*group]
        found = [row for row in members if row is not None]
        if found:
            runs.append(ImageRun(start, torch.stack([row.states for row in found]), found[0].weight))
        start += len(members)
    return tuple(runs)


class ImageAttention(nn.Module):
    """The keys and values of image prompts in one cross-attention."""

    def __init__(self, width: int, text_dim: int) -> None:
        super().__init__()
        self.to_k_ip, self.to_v_ip = (nn.Linear(text_dim, width, bias=False) for _ in range(2))

    def add_(self, attended: Heads, query: Heads, runs: Sequence[ImageRun]) -> None:
        """Add what the rows of image prompts read of them to what was attended to; leave others alone."""
        for run in runs:
            rows = slice(run.start, run.start + len(run.states))
            key, value = (
                projection(run.states).unflatten(-1, (query.shape[1], -1)).transpose(1, 2)
                for projection in (self.to_k_ip, self.to_v_ip)
            )
            read = F.scaled_dot_product_attention(query[rows], key, value)
            attended[rows].add_(read, alpha=run.weight)


def load_image_attentions(
    adapter: IpAdapter, config: UNetConfig, plan: LoadPlan
) -> list[tuple[str, ImageAttention]]:
    """Load the keys and values of an IP-Adapter, each with the name of the cross-attention it belongs to."""
    places = cross_attentions(config)
    with torch.device("meta"):
        layers = [ImageAttention(width, adapter.shape.text_dim) for _, width in places]
    placements = {
        f"{attention_name(index)}.{name}": Placement(f"{index}.{name}")
        for index, layer in enumerate(layers)
        for name, _ in layer.named_parameters()
    }
    load_weights(nn.ModuleList(layers), [adapter.file], placements, plan, ignored_prefixes=(PROJECTION,))
    return [(name, layer) for (name, _), layer in zip(places, layers, strict=True)]
