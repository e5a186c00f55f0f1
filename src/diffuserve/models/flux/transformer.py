"""FLUX.1's transformer over packed sequences.

Reference implementations: Black Forest Labs' `flux/model.py` and diffusers'
`FluxTransformer2DModel`, whose tensor names the checkpoints use. Here the tokens of all requests
run in one row (see `packing`), and each token is modulated by its own request's timestep, guidance
and prompt, so one forward pass serves requests of any size at any step.

Shapes: `text`, `image` and `joint` count packed tokens, `seq` counts sequences, `d` is the width. Factors
that are the same for all tokens have one row for them, which `#tokens` allows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Complex64, Float, Int
from torch import Tensor, nn

from diffuserve.models.flux.config import FluxConfig
from diffuserve.models.flux.packing import PackedLayout
from diffuserve.models.layers.attention import AttentionKernel
from diffuserve.models.layers.feed_forward import FeedForward
from diffuserve.models.layers.linear import Linear, Tiling, set_tiling
from diffuserve.models.layers.rotary import rotate_
from diffuserve.models.layers.timestep import timestep_embedding
from diffuserve.models.weights import Placement

_TIMESTEP_CHANNELS = 256
_EPS = 1e-6


@dataclass(frozen=True)
class Levels:
    """Levels at which each sequence stands, which its factors depend on; `timestep` lies in 0…1000."""

    pooled: Float[Tensor, "seq pooled_dim"]
    timestep: Float[Tensor, "seq"]
    guidance: Float[Tensor, "seq"] | None


@dataclass(frozen=True)
class PackedInput:
    """The input of a forward pass; `factors` are those of each sequence, by `FluxTransformer.factors`."""

    image: Float[Tensor, "image channels"]
    text: Float[Tensor, "text text_dim"]
    factors: Float[Tensor, "seq factors d"]
    layout: PackedLayout


class FluxTransformer(nn.Module):
    """Predicts the velocity of every image token, noise minus image.

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
            _DoubleBlock(config, attention) for _ in range(config.num_layers)
        )
        self.single_transformer_blocks = nn.ModuleList(
            _SingleBlock(config, attention) for _ in range(config.num_single_layers)
        )
        self.norm_out = _Modulation(dim, ("scale", "shift"))
        self.proj_out = Linear(dim, config.num_outputs)

    def factors(self, levels: Levels) -> Float[Tensor, "seq factors d"]:
        """Return the modulation factors of all blocks.

        They depend on no latents, so those of all steps of a schedule can be made at once.
        """
        condition = F.silu(self.time_text_embed(levels))
        return torch.cat([modulation(condition) for modulation in self._modulations()], dim=1)

    def forward(self, packed: PackedInput) -> Float[Tensor, "image outputs"]:
        layout = packed.layout
        factors = iter(packed.factors.split([part.num_factors for part in self._modulations()], dim=1))
        image, text = self.x_embedder(packed.image), self.context_embedder(packed.text)
        for block in self.transformer_blocks:
            image, text = block(image, text, next(factors), next(factors), layout)
        joint = _join(text, image, layout)
        for block in self.single_transformer_blocks:
            joint = block(joint, next(factors), layout)
        scale, shift = _of_tokens(next(factors), layout.image_owner)
        return self.proj_out(_normalise(_image_of(joint, layout), scale, shift))

    @property
    def num_factors(self) -> int:
        """Number of factors of a sequence, each as wide as a token."""
        return sum(modulation.num_factors for modulation in self._modulations())

    def _modulations(self) -> Iterator["_Modulation"]:
        """Yield the modulations in the order in which a forward pass needs their factors."""
        for block in self.transformer_blocks:
            assert isinstance(block, _DoubleBlock)
            yield block.norm1
            yield block.norm1_context
        for block in self.single_transformer_blocks:
            assert isinstance(block, _SingleBlock)
            yield block.norm
        yield self.norm_out

    def set_tiling(self, tokens: Tiling, sequences: Tiling) -> None:
        """Set the tiles of products over tokens, and of products with one row for each sequence."""
        set_tiling(self, tokens)
        for module in self.modules():
            if isinstance(module, _Modulation | _TimeTextEmbed):
                set_tiling(module, sequences)

    def placements(self) -> dict[str, Placement]:
        """Return the place of each checkpoint tensor: by its own name, but q, k and v into one product."""
        places = {}
        for name, _ in self.named_parameters():
            fused = next((key for key in _FUSED if f".{key}." in name), None)
            if fused is None:
                places[name] = Placement(name)
            else:
                parts = _FUSED[fused]
                places |= {name.replace(fused, part): Placement(name, i, 3) for i, part in enumerate(parts)}
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


class _Mod(NamedTuple):
    """Modulation factors of each token, named as in BFL's `ModulationOut`; `scale` includes the 1."""

    shift: Float[Tensor, "#tokens d"]
    scale: Float[Tensor, "#tokens d"]
    gate: Float[Tensor, "#tokens d"]


_FACTORS = ("shift", "scale", "gate")  # in the order of the checkpoints' rows


class _Modulation(nn.Module):
    """Factors of each sequence for adaLN (Peebles & Xie 2022, arXiv:2212.09748).

    `names` are the factors in the order of the checkpoint's rows. A scale acts as `1 + scale`; the 1 is
    added here, once for each sequence.
    """

    def __init__(self, dim: int, names: tuple[str, ...]) -> None:
        super().__init__()
        self.linear = Linear(dim, len(names) * dim)
        self.num_factors = len(names)
        self.scales = tuple(index for index, name in enumerate(names) if name == "scale")

    def forward(self, condition: Float[Tensor, "seq d"]) -> Float[Tensor, "seq factors d"]:
        factors = self.linear(condition).unflatten(-1, (self.num_factors, -1))
        for scale in self.scales:
            factors[:, scale] += 1
        return factors


class _HeadNorm(nn.Module):
    """The learnt scale of an RMS norm over each head's channels."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim), requires_grad=False)


class _JointAttention(nn.Module):
    """Queries, keys and values for image and text with weights of their own."""

    def __init__(self, config: FluxConfig) -> None:
        super().__init__()
        dim, head_dim = config.dim, config.attention_head_dim
        self.num_heads = config.num_attention_heads
        self.to_qkv = Linear(dim, 3 * dim)
        self.add_qkv_proj = Linear(dim, 3 * dim)
        self.norm_q, self.norm_k = _HeadNorm(head_dim), _HeadNorm(head_dim)
        self.norm_added_q, self.norm_added_k = _HeadNorm(head_dim), _HeadNorm(head_dim)
        self.to_out = nn.ModuleList([Linear(dim, dim)])
        self.to_add_out = Linear(dim, dim)


class _DoubleBlock(nn.Module):
    """A double-stream block: text and image keep their own weights and meet in attention."""

    def __init__(self, config: FluxConfig, attention: AttentionKernel) -> None:
        super().__init__()
        self.attention = attention
        self.norm1 = _Modulation(config.dim, 2 * _FACTORS)
        self.norm1_context = _Modulation(config.dim, 2 * _FACTORS)
        self.attn = _JointAttention(config)
        self.ff, self.ff_context = (FeedForward(config.dim, 4 * config.dim) for _ in range(2))

    def forward(
        self,
        image: Float[Tensor, "image d"],
        text: Float[Tensor, "text d"],
        factors: Float[Tensor, "seq six d"],
        context_factors: Float[Tensor, "seq six d"],
        layout: PackedLayout,
    ) -> tuple[Float[Tensor, "image d"], Float[Tensor, "text d"]]:
        attn = self.attn
        img_mod1, img_mod2 = _pair(_of_tokens(factors, layout.image_owner))
        txt_mod1, txt_mod2 = _pair(_of_tokens(context_factors, layout.text_owner))
        image_qkv = attn.to_qkv(_normalise(image, img_mod1.scale, img_mod1.shift))
        text_qkv = attn.add_qkv_proj(_normalise(text, txt_mod1.scale, txt_mod1.shift))
        qkv = _join(
            _prepare_qkv(text_qkv, attn.num_heads, attn.norm_added_q, attn.norm_added_k, None),
            _prepare_qkv(image_qkv, attn.num_heads, attn.norm_q, attn.norm_k, layout.image_rotation),
            layout,
        )
        attended = self.attention(qkv, layout.segments).flatten(1)
        image_out = attn.to_out[0](_image_of(attended, layout))
        text_out = attn.to_add_out(_text_of(attended, layout))
        image = torch.addcmul(image, img_mod1.gate, image_out)
        image = _feed_forward(image, img_mod2, self.ff)
        text = torch.addcmul(text, txt_mod1.gate, text_out)
        return image, _clip(_feed_forward(text, txt_mod2, self.ff_context))


class _SingleAttention(nn.Module):
    def __init__(self, config: FluxConfig) -> None:
        super().__init__()
        self.to_qkv = Linear(config.dim, 3 * config.dim)
        self.norm_q = _HeadNorm(config.attention_head_dim)
        self.norm_k = _HeadNorm(config.attention_head_dim)


class _SingleBlock(nn.Module):
    """A single-stream block: text and image as one sequence, attention and feed-forward side by side."""

    def __init__(self, config: FluxConfig, attention: AttentionKernel) -> None:
        super().__init__()
        dim = config.dim
        self.attention = attention
        self.num_heads = config.num_attention_heads
        self.norm = _Modulation(dim, _FACTORS)
        self.attn = _SingleAttention(config)
        self.proj_mlp = Linear(dim, 4 * dim, gelu=True)
        self.proj_out = Linear(5 * dim, dim)

    def forward(
        self, joint: Float[Tensor, "joint d"], factors: Float[Tensor, "seq three d"], layout: PackedLayout
    ) -> Float[Tensor, "joint d"]:
        mod = _Mod(*_of_tokens(factors, layout.joint_owner))
        x = _normalise(joint, mod.scale, mod.shift)
        qkv = _prepare_qkv(
            self.attn.to_qkv(x), self.num_heads, self.attn.norm_q, self.attn.norm_k, layout.joint_rotation
        )
        attended = self.attention(qkv, layout.segments).flatten(1)
        out = self.proj_out(torch.cat([attended, self.proj_mlp(x)], dim=-1))
        return _clip(torch.addcmul(joint, mod.gate, out))


def _of_tokens(
    factors: Float[Tensor, "seq factors d"], owner: Int[Tensor, "tokens"]
) -> tuple[Float[Tensor, "#tokens d"], ...]:
    """Return the factors of each token; a lone sequence's are one row for all of its tokens."""
    return (factors if len(factors) == 1 else factors.index_select(0, owner)).unbind(1)


def _pair(factors: tuple[Float[Tensor, "#tokens d"], ...]) -> tuple[_Mod, _Mod]:
    """Split six factors: those of the attention, and those of the feed-forward."""
    return _Mod(*factors[:3]), _Mod(*factors[3:])


def _feed_forward(
    x: Float[Tensor, "tokens d"], mod: _Mod, feed_forward: FeedForward
) -> Float[Tensor, "tokens d"]:
    return torch.addcmul(x, mod.gate, feed_forward(_normalise(x, mod.scale, mod.shift)))


def _normalise(
    x: Float[Tensor, "tokens d"], scale: Float[Tensor, "#tokens d"], shift: Float[Tensor, "#tokens d"]
) -> Float[Tensor, "tokens d"]:
    """Return scale·LayerNorm(x) + shift; the norm has no weights of its own."""
    return torch.addcmul(shift, F.layer_norm(x, x.shape[-1:], eps=_EPS), scale)


def _prepare_qkv(
    qkv: Float[Tensor, "tokens qkv"],
    num_heads: int,
    norm_q: _HeadNorm,
    norm_k: _HeadNorm,
    rotation: Complex64[Tensor, "tokens half"] | None,
) -> Float[Tensor, "tokens 3 heads dim"]:
    """Normalise queries and keys by each head's RMS (Zhang & Sennrich 2019, arXiv:1910.07467), then rotate.

    Both in float32; values stay as they are.
    """
    parts = qkv.unflatten(-1, (3, num_heads, -1))
    weight = torch.stack([norm_q.weight, norm_k.weight])[:, None]
    query_key = parts[:, :2].float()
    mean_square = query_key.square().mean(dim=-1, keepdim=True)
    query_key.mul_(torch.rsqrt(mean_square + _EPS)).mul_(weight)
    if rotation is not None:
        rotate_(query_key.flatten(1, 2), rotation)
    parts[:, :2] = query_key
    return parts


def _join(text: Tensor, image: Tensor, layout: PackedLayout) -> Tensor:
    """Interleave two packed rows into the joint row, along the first axis."""
    if layout.has_text_first:
        return torch.cat([text, image])
    joint = text.new_empty(text.shape[0] + image.shape[0], *text.shape[1:])
    joint.index_copy_(0, layout.text_at, text)
    return joint.index_copy_(0, layout.image_at, image)


def _text_of(joint: Tensor, layout: PackedLayout) -> Tensor:
    """Return the text row of a joint row."""
    return joint[: len(layout.text_at)] if layout.has_text_first else joint.index_select(0, layout.text_at)


def _image_of(joint: Tensor, layout: PackedLayout) -> Tensor:
    """Return the image row of a joint row."""
    return joint[len(layout.text_at) :] if layout.has_text_first else joint.index_select(0, layout.image_at)


def _clip(x: Tensor) -> Tensor:
    """Clip float16 to its finite range, as the reference does."""
    return x.clip(-65504, 65504) if x.dtype == torch.float16 else x
