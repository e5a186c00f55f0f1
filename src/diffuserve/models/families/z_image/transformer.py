"""Z-Image's transformer over packed sequences (Z-Image Team 2025, arXiv:2511.22699).

Reference implementation: diffusers' `ZImageTransformer2DModel`, whose tensor names the checkpoints use.
Blocks of their own refine a prompt, once for all steps. An image's tokens pass two blocks alone, and then a
single stream of blocks together with the prompt's. Prompts and images are padded with learned tokens to
multiples of 32, which attention reads like any others.

A block normalizes what it reads and what it adds. The timestep modulates both, but in a prompt's blocks:

    x ← x + gate·norm(attention(scale·norm(x)))
    x ← x + gate·norm(feed_forward(scale·norm(x)))

Shapes: `tokens` counts packed tokens, `image`, `text` and `joint` those of each row, `rows` rows of factors,
`d` is the width and `own_d` this rank's part of it, if ranks share the weights.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Complex64, Float, Int
from torch import Tensor, nn

from diffuserve.models.families.packed_images.transformer import FUSED_QKV, PackedTransformer
from diffuserve.models.families.z_image.config import PATCH, TIMESTEP_CHANNELS, TIMESTEP_HIDDEN, ZImageConfig
from diffuserve.models.layers.adapted.adapters import RowAdapters
from diffuserve.models.layers.attention import AttentionKernel
from diffuserve.models.layers.gated_feed_forward import GATED_SHARDS, GatedFeedForward
from diffuserve.models.layers.joint.attention import SelfAttention
from diffuserve.models.layers.joint.joint_row import RawQkv, image_of, join
from diffuserve.models.layers.joint.modulation import (
    OfSequences,
    add_gated,
    factors_of_tokens,
    normalize,
)
from diffuserve.models.layers.joint.packing import PackedInput, PackedLayout
from diffuserve.models.layers.linear import Linear
from diffuserve.models.layers.rms_norm import TokenRmsNorm
from diffuserve.models.layers.segments import Segments
from diffuserve.models.layers.tensor_parallel import Sharding
from diffuserve.models.layers.timestep import timestep_embedding
from diffuserve.models.offload.components import Component, Ring

_PATCHES = f"{PATCH}-1"  # the only size of patches, and the name of its layers
FACTORS = 4  # of a block
SHARDS = {
    r".*\.attention\.to_qkv": Sharding(parts=(1, 1, 1)),
    r".*\.attention\.to_out\.0": Sharding(by_inputs=True),
    **{rf".*\.feed_forward\.{name}": sharding for name, sharding in GATED_SHARDS.items()},
}
"""How ranks share the weights: attention by heads. Modulations are small, and whole on each rank."""
FUSED = {**FUSED_QKV, "linear_in": ("w1", "w3"), "linear_out": ("w2",)}
_HEAD_EPS = 1e-5
WEIGHTS = ("all_", "layers.", "noise_refiner.", "t_embedder.", "x_pad_token")
"""Prefixes of the weights that every step reads; a checkpoint's others refine prompts."""


@dataclass(frozen=True)
class Row:
    """What a block knows of a packed row: `owner` is each token's row of factors."""

    segments: Segments
    rotation: Complex64[Tensor, "tokens half"]
    owner: Int[Tensor, "tokens"]
    adapters: RowAdapters | None = None

    @classmethod
    def of_image(cls, layout: PackedLayout, adapters: RowAdapters | None) -> "Row":
        return cls(layout.image_segments, layout.image_rotation, layout.image_owner, adapters)

    @classmethod
    def of_joint(cls, layout: PackedLayout, adapters: RowAdapters | None) -> "Row":
        return cls(layout.segments, layout.joint_rotation, layout.joint_owner, adapters)


class Half(NamedTuple):
    """The factors of attention or of the feed-forward network; `scale` includes the 1."""

    scale: Float[Tensor, "rows d"]
    gate: Float[Tensor, "rows d"]
    owner: Int[Tensor, "tokens"] | None


class OfTimestep(OfSequences, nn.Sequential):
    """Layers over one row for each sequence, by their numbers in checkpoints."""

    def forward(
        self, x: Float[Tensor, "rows in"], adapters: RowAdapters | None = None
    ) -> Float[Tensor, "rows out"]:
        for layer in self:
            x = layer(x, adapters) if isinstance(layer, Linear) else layer(x)
        return x


class ZImageBlock(nn.Module):
    """A block over one packed row. Without `is_modulated` it has no modulation of its own."""

    start_weights = ("attention.to_qkv.", "attention.norm_", "attention_norm1.")
    end_weights = ("attention.to_out.", "attention_norm2.", "feed_forward.", "ffn_norm")

    def __init__(self, config: ZImageConfig, attend: AttentionKernel, is_modulated: bool = True) -> None:
        super().__init__()
        dim, eps = config.dim, config.norm_eps
        self.attend = attend
        self.attention = _Attention(config)
        self.feed_forward = GatedFeedForward(dim, config.hidden_dim)
        self.attention_norm1, self.attention_norm2 = TokenRmsNorm(dim, eps), TokenRmsNorm(dim, eps)
        self.ffn_norm1, self.ffn_norm2 = TokenRmsNorm(dim, eps), TokenRmsNorm(dim, eps)
        if is_modulated:
            self.adaLN_modulation = OfTimestep(Linear(config.num_modulation, FACTORS * dim))
        self.compiled: Callable[[Tensor, Tensor, Row], Tensor] | None = None

    def factors(
        self, condition: Float[Tensor, "rows c"], adapters: RowAdapters | None
    ) -> Float[Tensor, "rows 4 d"]:
        """Return its factors at the timesteps of which `condition` has the vectors."""
        scale, gate, scale_2, gate_2 = self.adaLN_modulation(condition, adapters).chunk(FACTORS, dim=-1)
        return torch.stack([1 + scale, gate.tanh(), 1 + scale_2, gate_2.tanh()], dim=1)

    def forward(
        self, x: Float[Tensor, "tokens d"], factors: Float[Tensor, "rows 4 d"], row: Row
    ) -> Float[Tensor, "tokens d"]:
        if self.compiled is not None and row.adapters is None:
            return self.compiled(x, factors, row)
        first, second = halves(factors, row.owner)
        qkv = self.raw_qkv(x, first, row.rotation, row.adapters).prepare_()
        attended = self.attend(qkv, row.segments).flatten(1)
        return self.finish(x, attended, first, second, row.adapters)

    def raw_qkv(
        self,
        x: Float[Tensor, "tokens d"],
        half: Half,
        rotation: Complex64[Tensor, "tokens half"] | None,
        adapters: RowAdapters | None = None,
    ) -> RawQkv:
        """Return what attention reads, not normalized yet."""
        normed = self.attention_norm1(x, half.scale, half.owner)
        return self.attention.raw_qkv(normed, rotation, adapters)

    def finish(
        self,
        x: Float[Tensor, "tokens d"],
        attended: Float[Tensor, "tokens own_d"],
        first: Half,
        second: Half,
        adapters: RowAdapters | None = None,
    ) -> Float[Tensor, "tokens d"]:
        """Return the row after the block, from the result of attention."""
        change = self.attention.to_out[0](attended, adapters)
        x = add_gated(x, first.gate, change, first.owner, self.attention_norm2)
        change = self.feed_forward(self.ffn_norm1(x, second.scale, second.owner), adapters)
        return add_gated(x, second.gate, change, second.owner, self.ffn_norm2)


def halves(factors: Float[Tensor, "rows 4 d"], owner: Int[Tensor, "tokens"]) -> tuple[Half, Half]:
    """Return the factors of a block's two halves."""
    (scale, gate, scale_2, gate_2), owners = factors_of_tokens(factors, owner)
    return Half(scale, gate, owners), Half(scale_2, gate_2, owners)


class _Attention(SelfAttention):
    def __init__(self, config: ZImageConfig) -> None:
        super().__init__(config.dim, config.head_dim, bias=False, eps=_HEAD_EPS)
        self.to_out = nn.ModuleList([Linear(config.dim, config.dim, bias=False)])


class ZImageTransformer(PackedTransformer):
    """Predicts the velocity (noise minus image) of every image token, in float32.

    Submodules are named as in diffusers' `ZImageTransformer2DModel`, without those that refine prompts.
    """

    shardings, fused = SHARDS, FUSED

    def __init__(self, config: ZImageConfig, attend: AttentionKernel) -> None:
        super().__init__(config)
        self.config = config
        self.t_embedder = _TimestepEmbedder(config)
        self.all_x_embedder = nn.ModuleDict({_PATCHES: Linear(PATCH**2 * config.in_channels, config.dim)})
        self.x_pad_token = nn.Parameter(torch.empty(1, config.dim), requires_grad=False)
        self.noise_refiner, self.layers = (
            nn.ModuleList(ZImageBlock(config, attend) for _ in range(count))
            for count in (config.n_refiner_layers, config.n_layers)
        )
        self.all_final_layer = nn.ModuleDict({_PATCHES: _FinalLayer(config)})

    def factors(
        self, timesteps: Float[Tensor, "rows"], adapters: RowAdapters | None = None
    ) -> Float[Tensor, "rows factors d"]:
        """Return the factors of all blocks and of the last layer at timesteps in 0…1; 1 is the image."""
        condition = self.t_embedder(timesteps, adapters)
        parts = [block.factors(condition, adapters) for block in self.blocks]
        return torch.cat([*parts, self._final.factors(condition, adapters)], dim=1)

    def forward(self, packed: PackedInput) -> Float[Tensor, "image outputs"]:
        layout, adapters = packed.layout, packed.adapters
        *factors, last = packed.factors.split([*[FACTORS] * len(self.blocks), 1], dim=1)
        refiners = len(self.noise_refiner)
        image = self._embed(packed.image, adapters.image)
        for block, own in zip(self.noise_refiner, factors[:refiners], strict=True):
            image = block(image, own, Row.of_image(layout, adapters.image))
        joint = join(packed.text, image, layout)
        for block, own in zip(self.layers, factors[refiners:], strict=True):
            joint = block(joint, own, Row.of_joint(layout, adapters.joint))
        return self._final(image_of(joint, layout), last, layout.image_owner, adapters.image)

    def _embed(
        self, image: Float[Tensor, "image channels"], adapters: RowAdapters | None
    ) -> Float[Tensor, "image d"]:
        """Return the first state of tokens; the last channel is 1 for padding, and 0 for the image's."""
        patches = rearrange(image[:, :-1], "n (c p) -> n (p c)", p=PATCH**2)
        embedded = self.all_x_embedder[_PATCHES](patches, adapters)
        return torch.where(image[:, -1:] > 0, self.x_pad_token, embedded)

    @property
    def _final(self) -> "_FinalLayer":
        layer = self.all_final_layer[_PATCHES]
        assert isinstance(layer, _FinalLayer)
        return layer

    @property
    def blocks(self) -> list[ZImageBlock]:
        """The blocks of a step, in their order."""
        blocks = [*self.noise_refiner, *self.layers]
        return [block for block in blocks if isinstance(block, ZImageBlock)]

    @property
    def component(self) -> Component:
        """Return how its weights may be kept on the host."""
        blocks = self.blocks
        modulations = [block.adaLN_modulation for block in blocks]  # they run before their blocks
        rings = [Ring(blocks, apart=modulations), Ring(modulations, is_in_every_pass=False)]
        return Component(self, rings, is_denoiser=True, entries=("forward", "factors"))

    @property
    def num_factors(self) -> int:
        """Number of factors of a sequence, each as wide as a token."""
        return FACTORS * len(self.blocks) + 1


class _TimestepEmbedder(nn.Module):
    def __init__(self, config: ZImageConfig) -> None:
        super().__init__()
        self.scale = config.t_scale
        self.mlp = OfTimestep(
            Linear(TIMESTEP_CHANNELS, TIMESTEP_HIDDEN),
            nn.SiLU(),
            Linear(TIMESTEP_HIDDEN, config.num_modulation),
        )

    def forward(
        self, timesteps: Float[Tensor, "rows"], adapters: RowAdapters | None
    ) -> Float[Tensor, "rows c"]:
        embedded = timestep_embedding(timesteps * self.scale, TIMESTEP_CHANNELS)
        first = self.mlp[0]
        assert isinstance(first, Linear)
        return self.mlp(embedded.to(first.weight.dtype), adapters)


class _FinalLayer(nn.Module):
    def __init__(self, config: ZImageConfig) -> None:
        super().__init__()
        self.linear = Linear(config.dim, PATCH**2 * config.in_channels)
        self.adaLN_modulation = OfTimestep(nn.SiLU(), Linear(config.num_modulation, config.dim))

    def factors(
        self, condition: Float[Tensor, "rows c"], adapters: RowAdapters | None
    ) -> Float[Tensor, "rows 1 d"]:
        return 1 + self.adaLN_modulation(condition, adapters)[:, None]

    def forward(
        self,
        image: Float[Tensor, "image d"],
        factors: Float[Tensor, "rows 1 d"],
        owner: Int[Tensor, "image"],
        adapters: RowAdapters | None,
    ) -> Float[Tensor, "image outputs"]:
        [scale], owners = factors_of_tokens(factors, owner)
        predicted = self.linear(normalize(image, scale, torch.zeros_like(scale), owners), adapters)
        return -rearrange(
            predicted.float(), "n (p c) -> n (c p)", p=PATCH**2
        )  # checkpoints predict image minus noise
