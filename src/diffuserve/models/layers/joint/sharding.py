"""A packed batch split over several ranks: each has an equal part of the text and of the image tokens.

Between attentions a token needs only itself and its sequence's factors, so any split works, and the
transformer runs on a part like on a whole. A rank's joint row is its text, then its images:

    rank 0    t₁ t₂ │ i₁ i₂ i₃        rank 1    t₃ t₄ │ i₄ i₅ –

For attention all ranks' rows are concatenated, and `order` gives the position in them of each token of the
unsplit joint row. The last rank's rows are padded with copies of the last token, which are never read.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from diffuserve.models.layers.joint.packing import PackedInput, PackedLayout
from diffuserve.models.layers.segments import Segments
from diffuserve.models.layers.sequence_parallel import ShardedSegments, part_of, part_size


@dataclass(frozen=True)
class Shard:
    """A rank's part: indices of its tokens in the packed rows, and their layout.

    `text_rows` and `image_rows` are the places of its tokens, with those of padding.
    """

    text: Int[Tensor, "local_text"]
    image: Int[Tensor, "local_image"]
    text_rows: range
    image_rows: range
    layout: PackedLayout

    def of(self, packed: PackedInput) -> PackedInput:
        """Return this rank's part of a packed batch."""
        return replace(
            packed,
            image=packed.image[self.image],
            text=packed.text[self.text],
            layout=self.layout,
            adapters=packed.adapters.part(self.text_rows, self.image_rows),
            changes=tuple(change.part(self.image_rows) for change in packed.changes),
        )


def shard_layout(layout: PackedLayout, rank: int, size: int) -> Shard:
    """Return the part of rank `rank` of `size`."""
    num_text, num_image = len(layout.text_at), len(layout.image_at)
    text_part, image_part = part_size(num_text, size), part_size(num_image, size)
    device = layout.text_at.device
    text = part_of(num_text, text_part, rank).to(device)
    image = part_of(num_image, image_part, rank).to(device)
    text_rotation = layout.joint_rotation[layout.text_at[text]]
    order = torch.empty(num_text + num_image, dtype=torch.long, device=device)
    order[layout.text_at] = _places(num_text, text_part, text_part + image_part, 0).to(device)
    order[layout.image_at] = _places(num_image, image_part, text_part + image_part, text_part).to(device)
    local = PackedLayout(
        segments=_sharded(layout.segments, order),
        image_segments=_sharded(layout.image_segments, torch.arange(num_image, device=device)),
        text_at=torch.arange(text_part, device=device),
        image_at=torch.arange(text_part, text_part + image_part, device=device),
        text_owner=layout.text_owner[text],
        image_owner=layout.image_owner[image],
        joint_owner=torch.cat([layout.text_owner[text], layout.image_owner[image]]),
        text_rotation=None if layout.text_rotation is None else text_rotation,
        image_rotation=layout.image_rotation[image],
        joint_rotation=torch.cat([text_rotation, layout.image_rotation[image]]),
        has_text_first=True,
    )
    text_rows, image_rows = (range(rank * part, (rank + 1) * part) for part in (text_part, image_part))
    return Shard(text, image, text_rows, image_rows, local)


def _sharded(segments: Segments, order: Int[Tensor, "tokens"]) -> ShardedSegments:
    return ShardedSegments(segments.lengths, segments.cu_seqlens, order)


def _places(count: int, part: int, row: int, offset: int) -> Tensor:
    """Return the places of tokens 0…count - 1 in the ranks' rows.

    Each row is `row` long; in each, `part` of the tokens begin at `offset`.
    """
    number = torch.arange(count)
    return number // part * row + offset + number % part
