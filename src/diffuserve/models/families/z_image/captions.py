"""The part of Z-Image's transformer that refines prompts, once for all of a request's steps."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor, nn

from diffuserve.models.families.packed_images.transformer import PackedTransformer
from diffuserve.models.families.z_image.config import ZImageConfig
from diffuserve.models.families.z_image.positions import caption_rotation, padding
from diffuserve.models.families.z_image.transformer import FACTORS, FUSED, SHARDS, Row, ZImageBlock
from diffuserve.models.layers.adapted.adapters import RowAdapters, Uses
from diffuserve.models.layers.attention import AttentionKernel
from diffuserve.models.layers.linear import Linear
from diffuserve.models.layers.rms_norm import TokenRmsNorm
from diffuserve.models.layers.segments import Segments
from diffuserve.models.machine.devices import to_device
from diffuserve.models.offload.components import Component, Ring

WEIGHTS = ("cap_embedder.", "cap_pad_token", "context_refiner.")
"""Prefixes of its weights among those of the transformer."""


class CaptionRefiner(PackedTransformer):
    """Refines the tokens of prompts, and pads them: to these the tokens of images attend."""

    shardings, fused = SHARDS, FUSED

    def __init__(self, config: ZImageConfig, attend: AttentionKernel) -> None:
        super().__init__(config)
        self.config = config
        norm = TokenRmsNorm(config.cap_feat_dim, config.norm_eps)
        self.cap_embedder = nn.ModuleList([norm, Linear(config.cap_feat_dim, config.dim)])
        self.cap_pad_token = nn.Parameter(torch.empty(1, config.dim), requires_grad=False)
        self.context_refiner = nn.ModuleList(
            ZImageBlock(config, attend, is_modulated=False) for _ in range(config.n_refiner_layers)
        )

    def forward(
        self, states: Float[Tensor, "tokens features"], lengths: Sequence[int], adapters: Sequence[Uses]
    ) -> tuple[Float[Tensor, "_ d"], ...]:
        """Return each prompt's tokens, of which the text encoder's `states` stand in a row.

        Each prompt has `adapters` of its own.
        """
        padded = [length + padding(length) for length in lengths]
        norm, widen = self.cap_embedder
        tokens = self.cap_pad_token.repeat(sum(padded), 1)
        embedded = widen(norm(states), RowAdapters.of(lengths, adapters))
        tokens.index_copy_(0, to_device(_places(lengths, padded), states.device), embedded)
        row = self._row(padded, adapters, states.device)
        unmodulated = tokens.new_ones(1, FACTORS, self.config.dim)
        for block in self.context_refiner:
            tokens = block(tokens, unmodulated, row)
        return tokens.split(padded)

    @property
    def component(self) -> Component:
        """Return how its weights may be kept on the host."""
        return Component(self, [Ring(list(self.context_refiner))], is_encoder=True)

    def _row(self, padded: Sequence[int], adapters: Sequence[Uses], device: torch.device) -> Row:
        rotation = torch.cat([caption_rotation(self.config, length) for length in padded])
        owner = torch.zeros(sum(padded), dtype=torch.int64, device=device)
        segments = Segments.of(tuple(padded), device)
        return Row(segments, to_device(rotation, device), owner, RowAdapters.of(padded, adapters))


def _places(lengths: Sequence[int], padded: Sequence[int]) -> Tensor:
    """Return where tokens stand in a row in which each prompt is padded."""
    starts = (0, *accumulate(padded))
    return torch.cat([torch.arange(at, at + length) for at, length in zip(starts, lengths, strict=False)])
