"""A guided denoising step of Wan 2.1's 14B at full size, as one of several ranks would do it.

Tensors have no memory, and nothing is exchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from diffuserve.models.base import map_tensors
from diffuserve.models.layers.attention import (
    AttentionKernel,
    varlen_flash,
    varlen_flash_across,
    varlen_flash_causal,
)
from diffuserve.models.layers.sequence_parallel import ulysses
from diffuserve.models.wan.config import TEXT_TOKENS, WanTransformerConfig
from diffuserve.models.wan.packing import ClipLayout, ClipShape, pack_layout
from diffuserve.models.wan.sharding import shard_layout
from diffuserve.models.wan.transformer import PackedWanInput, WanTransformer
from diffuserve.parallel.pass_ranks import PassRanks, deal
from diffuserve.parallel.plan import ParallelPlan
from diffuserve.parallel.ranks import SequenceRanks, TensorRanks
from support.collective_counter import CollectiveCounter, Exchange, fake_group
from support.kernel_counter import KernelCounter, fake_cuda

WAN_14B = WanTransformerConfig()
_PROMPT = 100  # tokens of a prompt, of the 512 that it is padded to
# 81 frames of 832×480 pixels: 21 latent frames of 30×52 tokens.
CLIP = ClipShape(21, 30, 52, text=_PROMPT, padding=TEXT_TOKENS - _PROMPT)
_CPU, _CUDA = torch.device("cpu"), torch.device("cuda:0")


@dataclass(frozen=True)
class RankStep:
    """What the first rank has and does in a step; `exchanges` are by operation.

    `peak_bytes` are those of tensors that a step makes, `flops` the operations of products and attention.
    """

    weight_bytes: int
    peak_bytes: int
    flops: int
    exchanges: dict[str, Exchange]


def count_rank(
    plan: ParallelPlan, passes: Sequence[ClipShape] = (CLIP, CLIP), config: WanTransformerConfig = WAN_14B
) -> RankStep:
    """Count the first rank's part of a step of these passes, in bf16 on CUDA."""
    hands = deal([shape.tokens for shape in passes], plan.cfg)
    own = [passes[index] for index in hands[0]]
    whole = pack_layout(own, config, _CPU)
    local = whole if plan.sequence == 1 else shard_layout(own, whole, 0, plan.sequence).layout
    lengths = [shape.tokens for shape in passes]
    with fake_group(plan.num_ranks), fake_cuda() as fake, torch.no_grad():
        tensor, sequence, others = _groups(plan)
        transformer = _transformer(config, tensor, sequence)
        packed = _input(map_tensors(local, lambda each: fake.from_tensor(each).to(_CUDA)), config)
        with KernelCounter() as kernels, CollectiveCounter() as collectives:
            outputs = transformer(packed)
            rows = outputs if sequence is None else sequence.gather(outputs)
            others.gather(rows, lengths, hands)
    weight_bytes = sum(parameter.nbytes for parameter in transformer.parameters())
    flops = kernels.of("product").flops + attention_flops(own, config) // plan.group_size
    return RankStep(weight_bytes, kernels.peak_bytes, flops, dict(collectives.by_operation))


def attention_flops(passes: Sequence[ClipShape], config: WanTransformerConfig) -> int:
    """Return the operations of both products of all attentions, to the clips and to their prompts."""
    pairs = sum(shape.tokens * (shape.tokens + shape.text + shape.padding) for shape in passes)
    return pairs * config.pair_operations


def _groups(plan: ParallelPlan) -> tuple[TensorRanks | None, SequenceRanks | None, PassRanks]:
    """Return the ranks that share weights, tokens and passes with the first one, as `Ranks` groups them."""
    size = plan.group_size
    tensor = _group(range(plan.tensor))
    sequence = _group(range(0, size, plan.tensor))
    return (
        None if tensor is None else TensorRanks(tensor),
        None if sequence is None else SequenceRanks(sequence),
        PassRanks(_group(range(0, plan.num_ranks, size))),
    )


def _group(ranks: Sequence[int]) -> dist.ProcessGroup | None:
    group: dist.ProcessGroup | None = dist.new_group(list(ranks)) if len(ranks) > 1 else None
    return group


def _transformer(
    config: WanTransformerConfig, tensor: TensorRanks | None, sequence: SequenceRanks | None
) -> WanTransformer:
    kernel = AttentionKernel("varlen-flash", varlen_flash, varlen_flash_across, varlen_flash_causal)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with _CUDA:
            transformer = WanTransformer(config, kernel if sequence is None else ulysses(kernel, sequence))
    finally:
        torch.set_default_dtype(torch.float32)
    if tensor is not None:
        transformer.share_weights(tensor)
    for placement in transformer.placements().values():
        if placement.dtype is not None:  # what stays in float32
            parameter = transformer.get_parameter(placement.parameter)
            parameter.data = parameter.data.to(placement.dtype)
    return transformer


def _input(layout: ClipLayout, config: WanTransformerConfig) -> PackedWanInput:
    """Return the input of a layout: its tokens, its factor rows, and the prompts of all sequences."""
    num_sequences = len(layout.text.keys.lengths)
    return PackedWanInput(
        tokens=_empty(len(layout.rotation), config.in_channels * config.patch_cells),
        timestep=_empty(len(layout.factors.lengths), dtype=torch.float32),
        text=_empty(num_sequences * _PROMPT, config.text_dim),
        layout=layout,
    )


def _empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=_CUDA)
