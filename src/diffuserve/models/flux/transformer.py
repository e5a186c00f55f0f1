"""FLUX.1's transformer over packed sequences.

Reference implementations: Black Forest Labs' `flux/model.py` and diffusers'
`FluxTransformer2DModel`, whose tensor names the checkpoints use. Here the tokens of all requests
run in one row (see `packing`), and each token is modulated by its own request's timestep, guidance
and prompt, so one forward pass serves requests of any size at any step.

Shapes: `text`, `image` and `joint` count packed tokens, `seq` counts sequences, `d` is the width, and `own_d`
this rank's part of it, if ranks share the weights. Factors that are the same for all tokens have one row,
which `#tokens` allows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Complex64, Float
from torch import Tensor, nn

from diffuserve.models.flux.config import FluxConfig
from diffuserve.models.flux.joint_row import RawQkv, image_of, join, join_qkv, text_of
from diffuserve.models.flux.modulation import (
    FACTORS,
    Mod,
    Modulation,
    factors_of_tokens,
    mods_of_tokens,
    normalize,
)
from diffuserve.models.flux.packing import PackedLayout
from diffuserve.models.layers.attention import AttentionKernel
from diffuserve.models.layers.feed_forward import FeedForward
from diffuserve.models.layers.linear import Linear, Tiling, set_tiling
from diffuserve.models.layers.tensor_parallel import Sharding, TensorShard, shard_layers
from diffuserve.models.layers.timestep import timestep_embedding
from diffuserve.models.offload.components import Component, Ring
from diffuserve.models.weights.loading import Placement
from diffuserve.parallel.ranks import TensorRanks

_TIMESTEP_CHANNELS = 256
_SHARDS = {
    r".*\.attn\.(to_qkv|add_qkv_proj)": Sharding(parts=(1, 1, 1)),
    r".*\.attn\.(to_out\.0|to_add_out)": Sharding(by_inputs=True),
    r".*\.(ff|ff_context)\.net\.0\.proj|.*\.proj_mlp": Sharding(),
    r".*\.(ff|ff_context)\.net\.2": Sharding(by_inputs=True),
    r"single_transformer_blocks\.\d+\.proj_out": Sharding(by_inputs=True, parts=(1, 4)),
    r".*\.(norm1|norm1_context)\.linear": Sharding(parts=(1,) * 2 * len(FACTORS)),
    r".*\.norm\.linear": Sharding(parts=(1,) * len(FACTORS)),
    r"norm_out\.linear": Sharding(parts=(1, 1)),
}
"""How ranks share the weights: attention by heads, and of modulation each rank has some channels of each
factor, which it gathers from the others. Embedders, head norms and the last product are whole on each."""


@dataclass(frozen=True)
class Levels:
    """The level of each sequence, on which its factors depend; `timestep` is in 0…1000."""

    pooled: Float[Tensor, "seq pooled_dim"]
    timestep: Float[Tensor, "seq"]
    guidance: Float[Tensor, "seq"] | None


@dataclass(frozen=True)
class PackedInput:
    """The input of a forward pass; `factors` are those of each sequence, by `FluxTransformer.factors`."""

    image: Float[Tensor, "image channels"]
    text: Float[Tensor, "text text_dim"]
    factors: Float[Tensor, "seq factors own_d"]
    layout: PackedLayout


class FluxTransformer(nn.Module):
    """Predicts the velocity (noise minus image) of every image token.

    Submodules are named as in diffusers' `FluxTransformer2DModel`.
    """

    def __init__(self, config: FluxConfig, attention: AttentionKernel) -> None:
        super().__init__()
        dim = config.dim
        self.config = config
        self.time_text_embed = _TimeTextEmbed(config)
        self.context_embedder = Linear(config.joint_attention_dim, dim)
        self.x_embedder = Linear(config.in_channels, dim)
        self.transformer_blocks = nn.ModuleList(
            DoubleBlock(config, attention) for _ in range(config.num_layers)
        )
        self.single_transformer_blocks = nn.ModuleList(
            SingleBlock(config, attention) for _ in range(config.num_single_layers)
        )
        self.norm_out = Modulation(dim, ("scale", "shift"))
        self.proj_out = Linear(dim, config.num_outputs)
        self.ranks: TensorRanks | None = None
        self._shares: dict[str, TensorShard] = {}

    def share_weights(self, ranks: TensorRanks) -> None:
        """Keep only the weights of this rank; called before any are loaded.

        From then on all ranks run a forward pass together, and `factors` returns some channels of each
        factor.
        """
        self.ranks, self._shares = ranks, shard_layers(self, _SHARDS, ranks)

    def factors(self, levels: Levels) -> Float[Tensor, "seq factors own_d"]:
        """Return the modulation factors of all blocks.

        They do not depend on latents, so those of all steps of a schedule can be computed at once.
        """
        condition = F.silu(self.time_text_embed(levels))
        return torch.cat([modulation(condition) for modulation in self._modulations()], dim=1)

    def forward(self, packed: PackedInput) -> Float[Tensor, "image outputs"]:
        layout = packed.layout
        whole = packed.factors if self.ranks is None else self.ranks.gather(packed.factors)
        factors = iter(whole.split([part.num_factors for part in self._modulations()], dim=1))
        image, text = self.x_embedder(packed.image), self.context_embedder(packed.text)
        for block in self.transformer_blocks:
            image, text = block(image, text, next(factors), next(factors), layout)
        joint = join(text, image, layout)
        for block in self.single_transformer_blocks:
            joint = block(joint, next(factors), layout)
        (scale, shift), owner = factors_of_tokens(next(factors), layout.image_owner)
        return self.proj_out(normalize(image_of(joint, layout), scale, shift, owner))

    @property
    def component(self) -> Component:
        """Return how its weights may be kept on the host."""
        modulations = list(self._modulations())[:-1]  # they run before their blocks
        rings = [Ring([*self.transformer_blocks, *self.single_transformer_blocks], apart=modulations)]
        rings.append(Ring(modulations, is_in_every_pass=False))
        return Component(self, rings, is_denoiser=True, entries=("forward", "factors"))

    @property
    def num_factors(self) -> int:
        """Number of factors of a sequence, each as wide as a token."""
        return sum(modulation.num_factors for modulation in self._modulations())

    def _modulations(self) -> Iterator["Modulation"]:
        """Yield the modulations in the order in which a forward pass needs their factors."""
        for block in self.transformer_blocks:
            assert isinstance(block, DoubleBlock)
            yield block.norm1
            yield block.norm1_context
        for block in self.single_transformer_blocks:
            assert isinstance(block, SingleBlock)
            yield block.norm
        yield self.norm_out

    def set_tiling(self, tokens: Tiling, sequences: Tiling) -> None:
        """Set the tiles of products over tokens, and of products with one row for each sequence."""
        set_tiling(self, tokens)
        for module in self.modules():
            if isinstance(module, Modulation | _TimeTextEmbed):
                set_tiling(module, sequences)

    def placements(self) -> dict[str, Placement]:
        """Return the place of each checkpoint tensor: under its own name, with q, k and v fused."""
        places = {}
        for name, _ in self.named_parameters():
            share = self._shares.get(name)
            fused = next((key for key in _FUSED if f".{key}." in name), None)
            if fused is None:
                places[name] = Placement(name, share=share)
                continue
            for index, part in enumerate(_FUSED[fused]):
                own = None if share is None else share.part(index, 3)
                places[name.replace(fused, part)] = Placement(name, index, 3, share=own)
        return places


_FUSED = {"to_qkv": ("to_q", "to_k", "to_v"), "add_qkv_proj": ("add_q_proj", "add_k_proj", "add_v_proj")}


class _TimeTextEmbed(nn.Module):
    """A vector for each sequence, from its timestep, guidance and pooled prompt."""

    def __init__(self, config: FluxConfig) -> None:
        super().__init__()
        self.timestep_embedder = _Embedder(_TIMESTEP_CHANNELS, config.dim)
        if config.guidance_embeds:
            self.guidance_embedder = _Embedder(_TIMESTEP_CHANNELS, config.dim)
        self.text_embedder = _Embedder(config.pooled_projection_dim, config.dim)

    def forward(self, levels: Levels) -> Float[Tensor, "seq d"]:
        dtype = levels.pooled.dtype
        # The reference passes t/1000 in the model's dtype and multiplies it there: in bf16 that moves the
        # timestep, and checkpoints are trained with it.
        timestep = (levels.timestep.to(dtype) / 1000) * 1000
        vector = self.timestep_embedder(timestep_embedding(timestep, _TIMESTEP_CHANNELS).to(dtype))
        if levels.guidance is not None:
            guidance = levels.guidance.to(dtype) * 1000
            vector = vector + self.guidance_embedder(
                timestep_embedding(guidance, _TIMESTEP_CHANNELS).to(dtype)
            )
        return vector + self.text_embedder(levels.pooled)


class _Embedder(nn.Module):
    def __init__(self, in_features: int, dim: int) -> None:
        super().__init__()
        self.linear_1 = Linear(in_features, dim)
        self.linear_2 = Linear(dim, dim)

    def forward(self, x: Float[Tensor, "seq in"]) -> Float[Tensor, "seq d"]:
        return self.linear_2(F.silu(self.linear_1(x)))


class _HeadNorm(nn.Module):
    """The learned scale of an RMS norm over each head's channels."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim), requires_grad=False)


class _JointAttention(nn.Module):
    """Queries, keys and values for image and text with weights of their own."""

    def __init__(self, config: FluxConfig) -> None:
        super().__init__()
        dim, head_dim = config.dim, config.attention_head_dim
        self.head_dim = head_dim
        self.to_qkv = Linear(dim, 3 * dim)
        self.add_qkv_proj = Linear(dim, 3 * dim)
        self.norm_q, self.norm_k = _HeadNorm(head_dim), _HeadNorm(head_dim)
        self.norm_added_q, self.norm_added_k = _HeadNorm(head_dim), _HeadNorm(head_dim)
        self.to_out = nn.ModuleList([Linear(dim, dim)])
        self.to_add_out = Linear(dim, dim)

    def raw_text_qkv(self, x: Float[Tensor, "text d"]) -> RawQkv:
        qkv = self.add_qkv_proj(x).unflatten(-1, (3, -1, self.head_dim))
        return RawQkv(qkv, self.norm_added_q.weight, self.norm_added_k.weight, None)

    def raw_image_qkv(
        self, x: Float[Tensor, "image d"], rotation: Complex64[Tensor, "image half"] | None
    ) -> RawQkv:
        qkv = self.to_qkv(x).unflatten(-1, (3, -1, self.head_dim))
        return RawQkv(qkv, self.norm_q.weight, self.norm_k.weight, rotation)


class DoubleBlock(nn.Module):
    """A double-stream block: text and image keep their own weights and meet in attention."""

    def __init__(self, config: FluxConfig, attention: AttentionKernel) -> None:
        super().__init__()
        self.attention = attention
        self.norm1 = Modulation(config.dim, 2 * FACTORS)
        self.norm1_context = Modulation(config.dim, 2 * FACTORS)
        self.attn = _JointAttention(config)
        self.ff, self.ff_context = (FeedForward(config.dim, 4 * config.dim) for _ in range(2))
        self.compiled: Callable[..., tuple[Tensor, Tensor]] | None = None

    def forward(
        self,
        image: Float[Tensor, "image d"],
        text: Float[Tensor, "text d"],
        factors: Float[Tensor, "seq six d"],
        context_factors: Float[Tensor, "seq six d"],
        layout: PackedLayout,
    ) -> tuple[Float[Tensor, "image d"], Float[Tensor, "text d"]]:
        if self.compiled is not None:
            return self.compiled(image, text, factors, context_factors, layout)
        attn = self.attn
        image_mods = mods_of_tokens(factors, layout.image_owner)
        text_mods = mods_of_tokens(context_factors, layout.text_owner)
        qkv = join_qkv(
            attn.raw_text_qkv(text_mods[0].normalize(text)),
            attn.raw_image_qkv(image_mods[0].normalize(image), layout.image_rotation),
            layout,
        )
        attended = self.attention(qkv, layout.segments).flatten(1)
        return (
            self.finish_image(image, image_of(attended, layout), image_mods),
            self.finish_text(text, text_of(attended, layout), text_mods),
        )

    def finish_image(
        self, image: Float[Tensor, "image d"], attended: Float[Tensor, "image own_d"], mods: Sequence[Mod]
    ) -> Float[Tensor, "image d"]:
        """Return the image row after the block, from the result of attention."""
        image = mods[0].add_gated(image, self.attn.to_out[0](attended))
        return _feed_forward(image, mods[1], self.ff)

    def finish_text(
        self, text: Float[Tensor, "text d"], attended: Float[Tensor, "text own_d"], mods: Sequence[Mod]
    ) -> Float[Tensor, "text d"]:
        """Return the text row after the block, from the result of attention."""
        text = mods[0].add_gated(text, self.attn.to_add_out(attended))
        return _clip(_feed_forward(text, mods[1], self.ff_context))


class _SingleAttention(nn.Module):
    def __init__(self, config: FluxConfig) -> None:
        super().__init__()
        self.head_dim = config.attention_head_dim
        self.to_qkv = Linear(config.dim, 3 * config.dim)
        self.norm_q = _HeadNorm(config.attention_head_dim)
        self.norm_k = _HeadNorm(config.attention_head_dim)

    def raw_qkv(
        self, x: Float[Tensor, "joint d"], rotation: Complex64[Tensor, "joint half"] | None
    ) -> RawQkv:
        qkv = self.to_qkv(x).unflatten(-1, (3, -1, self.head_dim))
        return RawQkv(qkv, self.norm_q.weight, self.norm_k.weight, rotation)


class SingleBlock(nn.Module):
    """A single-stream block: text and image as one sequence, attention and feed-forward side by side."""

    def __init__(self, config: FluxConfig, attention: AttentionKernel) -> None:
        super().__init__()
        dim = config.dim
        self.attention = attention
        self.norm = Modulation(dim, FACTORS)
        self.attn = _SingleAttention(config)
        self.proj_mlp = Linear(dim, 4 * dim, gelu=True)
        self.proj_out = Linear(5 * dim, dim)
        self.compiled: Callable[..., Tensor] | None = None

    def forward(
        self, joint: Float[Tensor, "joint d"], factors: Float[Tensor, "seq three d"], layout: PackedLayout
    ) -> Float[Tensor, "joint d"]:
        if self.compiled is not None:
            return self.compiled(joint, factors, layout)
        [mod] = mods_of_tokens(factors, layout.joint_owner)
        x = mod.normalize(joint)
        qkv = self.attn.raw_qkv(x, layout.joint_rotation).prepare_()
        attended = self.attention(qkv, layout.segments).flatten(1)
        return self.finish(joint, x, attended, mod)

    def finish(
        self,
        joint: Float[Tensor, "joint d"],
        x: Float[Tensor, "joint d"],
        attended: Float[Tensor, "joint own_d"],
        mod: Mod,
    ) -> Float[Tensor, "joint d"]:
        """Return the row after the block, from its normalized tokens and the result of attention."""
        out = self.proj_out.of_parts(attended, self.proj_mlp(x))
        return _clip(mod.add_gated(joint, out))


def _feed_forward(
    x: Float[Tensor, "tokens d"], mod: Mod, feed_forward: FeedForward
) -> Float[Tensor, "tokens d"]:
    return mod.add_gated(x, feed_forward(mod.normalize(x)))


def _clip(x: Tensor) -> Tensor:
    """Clip float16 to its finite range, as the reference does."""
    return x.clip(-65504, 65504) if x.dtype == torch.float16 else x
