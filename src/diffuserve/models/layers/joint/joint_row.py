"""The joint row of text and image: queries, keys and values of both, and the split into separate rows.

Queries and keys are normalized by each head's RMS (Zhang & Sennrich 2019, arXiv:1910.07467) and rotated, in
float32.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Complex64, Float, Float32, Int
from torch import Tensor

from diffuserve.models.layers.fused_ops import is_fused
from diffuserve.models.layers.joint.packing import PackedLayout
from diffuserve.models.layers.rms_norm import inverse_rms
from diffuserve.models.layers.rotary import rotate_, rotate_pairs


@dataclass(frozen=True)
class RawQkv:
    """Unnormalized queries, keys and values, with the norms and rotations that attention needs."""

    qkv: Float[Tensor, "tokens 3 heads dim"]
    norm_query: Float[Tensor, "dim"]
    norm_key: Float[Tensor, "dim"]
    rotation: Complex64[Tensor, "tokens half"] | None
    eps: float = 1e-6

    def prepare_(self) -> Float[Tensor, "tokens 3 heads dim"]:
        """Normalize and rotate in place."""
        if is_fused(self.qkv):
            self._fill(self.qkv[:, :2], self.qkv[:, :2], None)
            return self.qkv
        query_key = self.qkv[:, :2]
        wide = query_key.float()  # in float32 it is the same tensor
        wide.mul_(inverse_rms(wide, self.eps)).mul_(self._norm)
        if self.rotation is not None:
            rotate_(wide.flatten(1, 2), self.rotation)
        if wide is not query_key:
            query_key.copy_(wide)
        return self.qkv

    def prepared(
        self, rotation: Float32[Tensor, "tokens half 2"] | None
    ) -> Float[Tensor, "tokens 3 heads dim"]:
        """Return them ready for attention, rotated as real pairs, which a compiler can fuse."""
        query_key = self.qkv[:, :2].float()
        query_key = query_key * inverse_rms(query_key, self.eps) * self._norm
        if rotation is not None:
            pairs = rotation[:, None].expand(-1, 2, -1, -1)
            query_key = rotate_pairs(query_key, pairs)
        return torch.cat([query_key.to(self.qkv.dtype), self.qkv[:, 2:]], dim=1)

    @property
    def _norm(self) -> Float32[Tensor, "2 1 dim"]:
        return torch.stack([self.norm_query, self.norm_key])[:, None].float()

    def prepare_into(self, joint: Float[Tensor, "joint 3 heads dim"], places: Int[Tensor, "tokens"]) -> None:
        """Fill rows of the joint row, in one kernel."""
        self._fill(self.qkv, joint, places)

    def _fill(self, qkv: Tensor, out: Tensor, places: Tensor | None) -> None:
        rotation = None if self.rotation is None else torch.view_as_real(self.rotation)
        torch.ops.diffuserve.prepare_qkv(
            qkv, self.norm_query, self.norm_key, rotation, places, self.eps, out=out
        )


def join_qkv(text: RawQkv, image: RawQkv, layout: PackedLayout) -> Float[Tensor, "joint 3 heads dim"]:
    """Return both in the joint row, ready for attention."""
    if not is_fused(text.qkv):
        return join(text.prepare_(), image.prepare_(), layout)
    joint = text.qkv.new_empty(len(text.qkv) + len(image.qkv), *text.qkv.shape[1:])
    text.prepare_into(joint, layout.text_at)
    image.prepare_into(joint, layout.image_at)
    return joint


def join(text: Tensor, image: Tensor, layout: PackedLayout) -> Tensor:
    """Interleave two packed rows into the joint row, along the first axis."""
    if layout.has_text_first:
        return torch.cat([text, image])
    joint = text.new_empty(text.shape[0] + image.shape[0], *text.shape[1:])
    joint.index_copy_(0, layout.text_at, text)
    return joint.index_copy_(0, layout.image_at, image)


def text_of(joint: Tensor, layout: PackedLayout) -> Tensor:
    """Return the text row of a joint row."""
    return joint[: len(layout.text_at)] if layout.has_text_first else joint.index_select(0, layout.text_at)


def image_of(joint: Tensor, layout: PackedLayout) -> Tensor:
    """Return the image row of a joint row."""
    return joint[len(layout.text_at) :] if layout.has_text_first else joint.index_select(0, layout.image_at)
