"""Blocks with a single stream: attention and feed-forward side by side.

Reference: Dehghani et al. 2023, arXiv:2302.05442.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

from jaxtyping import Complex64, Float
from torch import Tensor, nn

from diffuserve.models.layers.adapted.adapters import NO_ADAPTERS, PassAdapters, RowAdapters
from diffuserve.models.layers.attention import AttentionKernel
from diffuserve.models.layers.joint.double_stream import clip
from diffuserve.models.layers.joint.joint_row import RawQkv
from diffuserve.models.layers.joint.modulation import Mod, mods_of_tokens
from diffuserve.models.layers.joint.packing import PackedLayout


class SingleStream(nn.Module):
    """A block over the joint row, whose attention and feed-forward network read the same normalized tokens.

    `start_weights` are the prefixes of the weights that make queries, keys and values, `end_weights` those of
    the others. If the feed-forward network begins with attention's product, `starts_both` is true.
    """

    start_weights: ClassVar[tuple[str, ...]]
    end_weights: ClassVar[tuple[str, ...]]
    starts_both: ClassVar[bool] = False

    def __init__(self, attention: AttentionKernel) -> None:
        super().__init__()
        self.attention = attention
        self.compiled: Callable[..., Tensor] | None = None

    @abstractmethod
    def start(
        self,
        x: Float[Tensor, "joint d"],
        rotation: Complex64[Tensor, "joint half"] | None,
        adapters: RowAdapters | None = None,
    ) -> tuple[RawQkv, Float[Tensor, "joint features"]]:
        """Return queries, keys and values of normalized tokens, and what the network goes on with.

        These are its features if it has begun too, else the tokens.
        """

    @abstractmethod
    def outputs(
        self,
        rest: Float[Tensor, "joint features"],
        attended: Float[Tensor, "joint own_d"],
        adapters: RowAdapters | None = None,
    ) -> Float[Tensor, "joint d"]:
        """Return what the block adds, from the rest of its start and the result of attention."""

    def forward(
        self,
        joint: Float[Tensor, "joint d"],
        factors: Float[Tensor, "rows three d"],
        layout: PackedLayout,
        adapters: PassAdapters = NO_ADAPTERS,
    ) -> Float[Tensor, "joint d"]:
        if self.compiled is not None and adapters.are_none:
            return self.compiled(joint, factors, layout)
        [mod] = mods_of_tokens(factors, layout.joint_owner)
        x = mod.normalize(joint)
        raw, rest = self.start(x, layout.joint_rotation, adapters.joint)
        attended = self.attention(raw.prepare_(), layout.segments).flatten(1)
        return self.finish(joint, rest, attended, mod, adapters.joint)

    def finish(
        self,
        joint: Float[Tensor, "joint d"],
        rest: Float[Tensor, "joint features"],
        attended: Float[Tensor, "joint own_d"],
        mod: Mod,
        adapters: RowAdapters | None = None,
    ) -> Float[Tensor, "joint d"]:
        """Return the row after the block, from the rest of its start and the result of attention."""
        return clip(mod.add_gated(joint, self.outputs(rest, attended, adapters)))
