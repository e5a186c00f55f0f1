"""Blocks with two streams: text and image keep their own weights and meet in attention.

Reference: MMDiT, Esser et al. 2024, arXiv:2403.03206.

Shapes: `text`, `image` and `joint` count packed tokens, `rows` rows of factors, `d` is the width, and `own_d`
this rank's part of it, if ranks share the weights.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from diffuserve.models.layers.adapted.adapters import NO_ADAPTERS, PassAdapters, RowAdapters
from diffuserve.models.layers.attention import AttentionKernel
from diffuserve.models.layers.joint.attention import JointAttention
from diffuserve.models.layers.joint.joint_row import image_of, join_qkv, text_of
from diffuserve.models.layers.joint.modulation import Mod, mods_of_tokens
from diffuserve.models.layers.joint.packing import PackedLayout


class DoubleStream(nn.Module):
    """A block with two streams, each modulated before attention and before its feed-forward network.

    Subclasses name their feed-forward networks as their checkpoints do: `networks` are the attributes of the
    image's and of the text's.
    """

    networks: ClassVar[tuple[str, str]]

    def __init__(self, attn: JointAttention, attention: AttentionKernel) -> None:
        super().__init__()
        self.attention = attention
        self.attn = attn
        self.compiled: Callable[..., tuple[Tensor, Tensor]] | None = None

    def forward(
        self,
        image: Float[Tensor, "image d"],
        text: Float[Tensor, "text d"],
        factors: Float[Tensor, "rows six d"],
        text_factors: Float[Tensor, "text_rows six d"],
        layout: PackedLayout,
        adapters: PassAdapters = NO_ADAPTERS,
    ) -> tuple[Float[Tensor, "image d"], Float[Tensor, "text d"]]:
        if self.compiled is not None and adapters.are_none:
            return self.compiled(image, text, factors, text_factors, layout)
        image_mods = mods_of_tokens(factors, layout.image_owner)
        text_mods = mods_of_tokens(text_factors, layout.text_owner)
        qkv = join_qkv(
            self.attn.raw_text_qkv(text_mods[0].normalize(text), layout.text_rotation, adapters.text),
            self.attn.raw_image_qkv(image_mods[0].normalize(image), layout.image_rotation, adapters.image),
            layout,
        )
        attended = self.attention(qkv, layout.segments).flatten(1)
        return (
            self.finish_image(image, image_of(attended, layout), image_mods, adapters.image),
            self.finish_text(text, text_of(attended, layout), text_mods, adapters.text),
        )

    def finish_image(
        self,
        image: Float[Tensor, "image d"],
        attended: Float[Tensor, "image own_d"],
        mods: Sequence[Mod],
        adapters: RowAdapters | None = None,
    ) -> Float[Tensor, "image d"]:
        """Return the image row after the block, from the result of attention."""
        image = mods[0].add_gated(image, self.attn.to_out[0](attended, adapters))
        return self._feed_forward(image, mods[1], self.networks[0], adapters)

    def finish_text(
        self,
        text: Float[Tensor, "text d"],
        attended: Float[Tensor, "text own_d"],
        mods: Sequence[Mod],
        adapters: RowAdapters | None = None,
    ) -> Float[Tensor, "text d"]:
        """Return the text row after the block, from the result of attention."""
        text = mods[0].add_gated(text, self.attn.to_add_out(attended, adapters))
        return clip(self._feed_forward(text, mods[1], self.networks[1], adapters))

    def _feed_forward(self, x: Tensor, mod: Mod, network: str, adapters: RowAdapters | None) -> Tensor:
        return mod.add_gated(x, self.get_submodule(network)(mod.normalize(x), adapters))


def clip(x: Tensor) -> Tensor:
    """Clip float16 to its finite range, as the references do."""
    return x.clip(-65504, 65504) if x.dtype == torch.float16 else x
