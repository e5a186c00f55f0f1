"""A guided denoising step of Wan 2.1's 14B at full size, for ranks to share."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from diffuserve.models.families.wan.config import TEXT_TOKENS, WanTransformerConfig
from diffuserve.models.families.wan.packing import ClipLayout, ClipShape, pack_layout
from diffuserve.models.families.wan.sharding import shard_layout
from diffuserve.models.families.wan.transformer import PackedWanInput, WanTransformer
from diffuserve.models.pipelines.base import map_tensors
from support.rank_step import CUDA, FirstRank, SharedStep

WAN_14B = WanTransformerConfig()
_PROMPT = 100  # tokens of a prompt, of the 512 that it is padded to
# 81 frames of 832×480 pixels: 21 latent frames of 30×52 tokens.
CLIP = ClipShape(21, 30, 52, text=_PROMPT, padding=TEXT_TOKENS - _PROMPT)


def wan_step(
    passes: Sequence[ClipShape] = (CLIP, CLIP), config: WanTransformerConfig = WAN_14B
) -> SharedStep:
    """Return a step of these passes."""
    keys = [shape.tokens + shape.text + shape.padding for shape in passes]
    pairs = [shape.tokens * count for shape, count in zip(passes, keys, strict=True)]
    return SharedStep(
        [shape.tokens for shape in passes],
        [count * config.pair_operations for count in pairs],
        partial(_lay_out, passes, config),
        partial(_prepare, config),
    )


def _lay_out(
    passes: Sequence[ClipShape], config: WanTransformerConfig, indices: Sequence[int], num_sharing: int
) -> ClipLayout:
    own = [passes[index] for index in indices]
    whole = pack_layout(own, config, torch.device("cpu"))
    return whole if num_sharing == 1 else shard_layout(own, whole, 0, num_sharing).layout


def _prepare(
    config: WanTransformerConfig, rank: FirstRank, layout: ClipLayout
) -> tuple[WanTransformer, PackedWanInput]:
    transformer: WanTransformer = rank.transformer(partial(WanTransformer, config))
    for placement in transformer.placements().values():
        if placement.dtype is not None:  # what stays in float32
            parameter = transformer.get_parameter(placement.parameter)
            parameter.data = parameter.data.to(placement.dtype)
    return transformer, _input(map_tensors(layout, rank.to_cuda), config)


def _input(layout: ClipLayout, config: WanTransformerConfig) -> PackedWanInput:
    """Return the input of a layout: its tokens, its factor rows, and the prompts of all sequences."""
    num_sequences = len(layout.text.keys.lengths)
    return PackedWanInput(
        tokens=_empty(len(layout.rotation), config.in_channels * config.patch_cells),
        timestep=_empty(len(layout.factors.lengths), dtype=torch.float32),
        text=_empty(num_sequences * (_PROMPT + 1), config.text_dim),
        layout=layout,
    )


def _empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=CUDA)
