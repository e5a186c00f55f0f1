"""A packed row split over several ranks: each has an equal part of the tokens, regardless of sequences.

Between attentions a token needs only itself and its sequence's factors, so any split works, and a transformer
runs on a part like on a whole. For attention ranks exchange tokens for heads, which is DeepSpeed Ulysses
(Jacobs et al. 2023, arXiv:2309.14509). Cross-attention needs no exchange: each rank has the keys of
all sequences, which are few.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from diffuserve.domain.models.cost import Workload
from diffuserve.models.layers.attention import AttentionKernel
from diffuserve.models.layers.segments import Segments
from diffuserve.parallel.ranks import Ranks, SequenceRanks


@dataclass(frozen=True)
class ShardedSegments(Segments):
    """The true sequences, and the places of their tokens in the concatenated rows of all ranks."""

    order: Int[Tensor, "tokens"]


def ulysses(kernel: AttentionKernel, ranks: SequenceRanks) -> AttentionKernel:
    """Return `kernel` over the tokens of all ranks, each of which computes some of the heads."""

    def attend(
        qkv: Float[Tensor, "local 3 heads dim"], segments: Segments
    ) -> Float[Tensor, "local heads dim"]:
        assert isinstance(segments, ShardedSegments)
        rows = ranks.scatter_heads(qkv)
        attended = kernel(rows.index_select(0, segments.order), segments)
        spread = attended.new_zeros(rows.shape[0], *attended.shape[1:])
        return ranks.gather_heads(spread.index_copy_(0, segments.order, attended))

    name = f"{kernel.name} over {ranks.size} ranks"
    return AttentionKernel(name, attend, kernel.attend_across, kernel.attend_causal)


def sharing_sequences(ranks: Ranks | None) -> SequenceRanks | None:
    """Return the ranks that share sequences with this one; `None` if none does."""
    return None if ranks is None or ranks.sequence.size == 1 else ranks.sequence


def rank_workload(workload: Workload, ranks: Ranks | None) -> Workload:
    """Return each rank's part of a step: its group has a part of the passes, which it runs as a whole."""
    groups = 1 if ranks is None else ranks.plan.cfg
    return replace(workload, num_sequences=part_size(workload.num_sequences, groups))


def rank_bytes(step_bytes: int, ranks: Ranks | None) -> int:
    """Return each rank's part of a step's memory: it has an equal part of the tokens, or of the heads."""
    return step_bytes if ranks is None else part_size(step_bytes, ranks.sequence.size)


def part_size(count: int, num_ranks: int) -> int:
    """Return how many of `count` tokens each rank has; the last ranks may have copies of the last token."""
    return -(-count // num_ranks)


def part_of(count: int, size: int, rank: int) -> Int[Tensor, "local"]:
    """Return the indices of a rank's `size` tokens; past the end, the last of `count` is repeated."""
    return torch.arange(rank * size, (rank + 1) * size).clamp(max=count - 1)
