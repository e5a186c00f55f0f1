"""A packed batch of clips split over several ranks: each has an equal part of the row of tokens.

The last rank's part is padded with copies of the last token, which are never read. Each rank has all prompts
and images.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from diffuserve.models.families.wan.packing import ClipLayout, ClipShape, image_segments, text_segments
from diffuserve.models.families.wan.transformer import PackedWanInput
from diffuserve.models.layers.segments import Segments
from diffuserve.models.layers.sequence_parallel import ShardedSegments, part_of, part_size


@dataclass(frozen=True)
class ClipShard:
    """A rank's part: indices of its tokens in the packed row, and their layout.

    `places` are the indices with those of copies, which are past the end.
    """

    tokens: Int[Tensor, "local"]
    places: range
    layout: ClipLayout

    def of(self, packed: PackedWanInput) -> PackedWanInput:
        """Return this rank's part of a packed batch."""
        tokens, adapters = packed.tokens[self.tokens], packed.adapters.part(self.places)
        return replace(packed, tokens=tokens, layout=self.layout, adapters=adapters)


def shard_layout(shapes: Sequence[ClipShape], layout: ClipLayout, rank: int, size: int) -> ClipShard:
    """Return the part of rank `rank` of `size`, of the `layout` of sequences with these shapes."""
    device = layout.rotation.device
    count = sum(layout.segments.lengths)
    part = part_size(count, size)
    tokens = part_of(count, part, rank).to(device)
    lengths = _local_lengths(layout.segments, rank, part)
    sequences = layout.segments
    local = ClipLayout(
        segments=ShardedSegments(sequences.lengths, sequences.cu_seqlens, torch.arange(count, device=device)),
        factors=Segments.of(_local_lengths(layout.factors, rank, part), device),
        text=text_segments(shapes, lengths, device),
        image=None if layout.image is None else image_segments(shapes, lengths, device),
        rotation=layout.rotation[tokens],
    )
    return ClipShard(tokens, range(rank * part, (rank + 1) * part), local)


def _local_lengths(segments: Segments, rank: int, part: int) -> tuple[int, ...]:
    """Return how many of a rank's tokens each sequence has; copies of the last token are the last one's."""
    lengths = segments.part(rank * part, (rank + 1) * part)
    return (*lengths[:-1], lengths[-1] + part - sum(lengths))
