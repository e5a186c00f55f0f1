"""A denoising step at full size as the first of several ranks would do it.

Tensors have no memory, and nothing is exchanged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from diffuserve.models.layers.attention import (
    AttentionKernel,
    varlen_flash,
    varlen_flash_across,
    varlen_flash_causal,
)
from diffuserve.models.layers.sequence_parallel import ulysses
from diffuserve.parallel.pass_ranks import PassRanks, deal
from diffuserve.parallel.plan import ParallelPlan
from diffuserve.parallel.ranks import SequenceRanks, TensorRanks
from support.collective_counter import CollectiveCounter, Exchange, fake_group
from support.kernel_counter import KernelCounter, fake_cuda

CUDA = torch.device("cuda:0")


@dataclass(frozen=True)
class RankStep:
    """What the first rank has and does in a step; `exchanges` are by operation.

    `peak_bytes` are those of tensors that a step makes, `flops` the operations of products and attention.
    """

    weight_bytes: int
    peak_bytes: int
    flops: int
    exchanges: dict[str, Exchange]


@dataclass(frozen=True)
class FirstRank:
    """The first rank of a plan, and the ranks that share weights and tokens with it."""

    plan: ParallelPlan
    tensor: TensorRanks | None
    sequence: SequenceRanks | None
    to_cuda: Callable[[Tensor], Tensor]

    def transformer(self, make: Callable[[AttentionKernel], nn.Module]) -> Any:
        """Build a transformer in bf16, and leave it this rank's weights."""
        kernel = AttentionKernel("varlen-flash", varlen_flash, varlen_flash_across, varlen_flash_causal)
        torch.set_default_dtype(torch.bfloat16)
        try:
            with CUDA:
                made: Any = make(kernel if self.sequence is None else ulysses(kernel, self.sequence))
        finally:
            torch.set_default_dtype(torch.float32)
        if self.tensor is not None:
            made.share_weights(self.tensor)
        return made


@dataclass(frozen=True)
class SharedStep:
    """The passes of a step, for ranks to share.

    `lengths` are the rows of output of each pass, `attention_flops` the operations of its attentions.
    `lay_out` returns the layout of a rank's part of the passes with these indices, whose tokens so many ranks
    share; `prepare` a transformer and its input for a layout.
    """

    lengths: Sequence[int]
    attention_flops: Sequence[int]
    lay_out: Callable[[Sequence[int], int], Any]
    prepare: Callable[[FirstRank, Any], tuple[nn.Module, Any]]


def count_rank(step: SharedStep, plan: ParallelPlan) -> RankStep:
    """Count the first rank's part of a step, in bf16 on CUDA."""
    hands = deal(step.attention_flops, plan.cfg)
    layout = step.lay_out(hands[0], plan.sequence)
    with fake_group(plan.num_ranks), fake_cuda() as fake, torch.no_grad():
        tensor = _group(range(plan.tensor))
        sequence = _group(range(0, plan.group_size, plan.tensor))
        others = PassRanks(_group(range(0, plan.num_ranks, plan.group_size)))
        rank = FirstRank(
            plan,
            None if tensor is None else TensorRanks(tensor),
            None if sequence is None else SequenceRanks(sequence),
            lambda each: fake.from_tensor(each).to(CUDA),
        )
        transformer, packed = step.prepare(rank, layout)
        with KernelCounter() as kernels, CollectiveCounter() as collectives:
            outputs = transformer(packed)
            rows = outputs if rank.sequence is None else rank.sequence.gather(outputs)
            others.gather(rows, step.lengths, hands)
    attention = sum(step.attention_flops[index] for index in hands[0]) // plan.group_size
    return RankStep(
        sum(parameter.nbytes for parameter in transformer.parameters()),
        kernels.peak_bytes,
        kernels.of("product").flops + attention,
        dict(collectives.by_operation),
    )


def _group(ranks: Sequence[int]) -> dist.ProcessGroup | None:
    group: dist.ProcessGroup | None = dist.new_group(list(ranks)) if len(ranks) > 1 else None
    return group
