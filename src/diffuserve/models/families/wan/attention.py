"""The attentions of Wan's blocks: of clips to themselves, and to prompts and images.

Queries and keys are normalized over the channels of all heads. Where ranks share the weights, each has some
of the heads, and the ranks add up the squares of their channels.

Shapes: `tokens` counts packed tokens of clips, `keys` those that they attend to, `d` is the width, and
`own_d` this rank's part of it.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn

from diffuserve.models.families.wan.config import WanTransformerConfig
from diffuserve.models.families.wan.packing import ClipLayout
from diffuserve.models.layers.adapted.adapters import RowAdapters
from diffuserve.models.layers.attention import AttentionKernel
from diffuserve.models.layers.linear import Linear
from diffuserve.models.layers.rotary import rotate_
from diffuserve.models.layers.tensor_parallel import Sharding
from diffuserve.parallel.ranks import TensorRanks

ATTENTION_SHARDS = {
    r".*\.attn1\.to_qkv": Sharding(parts=(1, 1, 1)),
    r".*\.attn2\.to_(added_)?kv": Sharding(parts=(1, 1)),
    r".*\.attn2\.to_q|.*\.attn[12]\.norm_(q|k|added_k)": Sharding(),
    r".*\.attn[12]\.to_out\.0": Sharding(by_inputs=True),
}
"""How ranks share the weights of attention: by heads."""


@dataclass(frozen=True)
class ClipContext:
    """The prompts and images that clips attend to, with the adapters of their rows."""

    text: Float[Tensor, "text d"]
    image: Float[Tensor, "image d"] | None
    text_adapters: RowAdapters | None = None
    image_adapters: RowAdapters | None = None


class RmsOverHeads(nn.Module):
    """The learned scale of an RMS norm over the channels of all heads."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim), requires_grad=False)


class _Attention(nn.Module):
    """What both attentions have; `ranks` are those that share its weights."""

    def __init__(self, config: WanTransformerConfig, attention: AttentionKernel) -> None:
        super().__init__()
        self.attention, self.head_dim, self.eps = attention, config.attention_head_dim, config.eps
        self.norm_q, self.norm_k = RmsOverHeads(config.dim), RmsOverHeads(config.dim)
        self.to_out = nn.ModuleList([Linear(config.dim, config.dim)])
        self.ranks: TensorRanks | None = None

    def _normalize(
        self, x: Float[Tensor, "tokens own_d"], norm: RmsOverHeads
    ) -> Float32[Tensor, "tokens own_d"]:
        """Divide by the RMS over all heads (Zhang & Sennrich 2019, arXiv:1910.07467), in float32.

        What is in float32 already is changed in place.
        """
        wide = x.float()
        return wide.mul_(self._inverse_rms(wide)).mul_(norm.weight)

    def _inverse_rms(self, x: Float32[Tensor, "*rows own_d"]) -> Float32[Tensor, "*rows 1"]:
        squares = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
        width = x.shape[-1]
        if self.ranks is not None:
            squares, width = self.ranks.add_up(squares), width * self.ranks.size
        return squares.div_(width).add_(self.eps).rsqrt_()


class ClipAttention(_Attention):
    """Attention of a clip's tokens to one another."""

    def __init__(self, config: WanTransformerConfig, attention: AttentionKernel) -> None:
        super().__init__(config, attention)
        self.to_qkv = Linear(config.dim, 3 * config.dim)

    def forward(
        self, x: Float[Tensor, "tokens d"], layout: ClipLayout, adapters: RowAdapters | None
    ) -> Float[Tensor, "tokens d"]:
        qkv = self.to_qkv(x, adapters).unflatten(-1, (3, -1))
        heads = (-1, self.head_dim)
        query_key = qkv[:, :2].float()
        inverse = self._inverse_rms(query_key)
        query_key.mul_(torch.stack([self.norm_q.weight, self.norm_k.weight]))
        # The norm's division is part of the rotation, whose factors are far fewer.
        rotate_(query_key.unflatten(-1, heads), layout.rotation[:, None] * inverse)
        _put_back(qkv[:, :2], query_key)
        attended = self.attention(qkv.unflatten(-1, heads), layout.segments)
        return self.to_out[0](attended.flatten(1), adapters)


class ContextAttention(_Attention):
    """Attention to the prompt, and to an image beside it with keys of its own."""

    def __init__(self, config: WanTransformerConfig, attention: AttentionKernel) -> None:
        super().__init__(config, attention)
        dim = config.dim
        self.to_q = Linear(dim, dim)
        self.to_kv = Linear(dim, 2 * dim)
        if config.image_dim is not None:
            self.to_added_kv = Linear(dim, 2 * dim)
            self.norm_added_k = RmsOverHeads(dim)

    def forward(
        self,
        x: Float[Tensor, "tokens d"],
        context: ClipContext,
        layout: ClipLayout,
        adapters: RowAdapters | None,
    ) -> Float[Tensor, "tokens d"]:
        query = self._normalize(self.to_q(x, adapters), self.norm_q).to(x.dtype)
        query = query.unflatten(-1, (-1, self.head_dim))
        text = self._key_value(self.to_kv(context.text, context.text_adapters), self.norm_k)
        attended = self.attention.cross(query, text, layout.text)
        if layout.image is not None:
            assert context.image is not None
            added = self.to_added_kv(context.image, context.image_adapters)
            image = self._key_value(added, self.norm_added_k)
            attended = attended + self.attention.cross(query, image, layout.image)
        return self.to_out[0](attended.flatten(1), adapters)

    def _key_value(
        self, both: Float[Tensor, "keys two_own_d"], norm: RmsOverHeads
    ) -> Float[Tensor, "keys 2 own_heads dim"]:
        key_value = both.unflatten(-1, (2, -1))
        _put_back(key_value[:, 0], self._normalize(key_value[:, 0], norm))
        return key_value.unflatten(-1, (-1, self.head_dim))


def share_attentions(module: nn.Module, ranks: TensorRanks) -> None:
    """Let the attentions within a module know the ranks that share their weights."""
    for layer in module.modules():
        if isinstance(layer, _Attention):
            layer.ranks = ranks


def _put_back(target: Tensor, values: Tensor) -> None:
    """Copy values to where they were read, unless they were changed in place."""
    if target.dtype != values.dtype:
        target.copy_(values)
