"""Wan's transformer over packed sequences.

Wan Team 2025 (arXiv:2503.20314). The reference implementation is diffusers' `WanTransformer3DModel`, whose
tensor names the checkpoints use. Here the tokens of all requests run in one row (see `packing`), and each is
modulated by its own request's timestep. Norms, factors and residual sums are in float32 whatever the model's
dtype, as in the reference, and so is the residual stream between them, which the reference rounds.

Keys and values of prompts are computed in each step although they do not change: without padding they are a
hundredth of a step's work, and keeping them would take much memory.

Shapes: `tokens` counts packed tokens of clips, `rows` factor rows, `text` and `image` the tokens of prompts
and the embeddings of images; `d` is the width.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32
from torch import Tensor, nn

from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.attention import AttentionKernel
from diffuserve.models.layers.feed_forward import FeedForward
from diffuserve.models.layers.linear import (
    Linear,
    Tiling,
    check_deterministic_width,
    cpu_tilings,
    set_tiling,
)
from diffuserve.models.layers.quantized_linear import quantize_layers
from diffuserve.models.layers.rotary import rotate_
from diffuserve.models.layers.segments import Segments
from diffuserve.models.layers.timestep import timestep_embedding
from diffuserve.models.offload.components import Component, Ring
from diffuserve.models.wan.config import TRANSFORMER_LAYERS, WanTransformerConfig
from diffuserve.models.wan.packing import ClipLayout
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import Placement, load_weights

_NUM_FACTORS = 6  # shift, scale and gate of the attention, and of the feed-forward
_IMAGE_EPS = 1e-5


@dataclass(frozen=True)
class PackedWanInput:
    """The input of a forward pass, in the order of the layout's sequences.

    `tokens` are patches of latents, `timestep` (0…1000) one value for each factor row, `text` the states of
    prompts without padding, and `image` the embeddings of images, for models that read them.
    """

    tokens: Float[Tensor, "tokens inputs"]
    timestep: Float[Tensor, "rows"]
    text: Float[Tensor, "text text_dim"]
    layout: ClipLayout
    image: Float[Tensor, "image image_dim"] | None = None


def load_transformer(
    folder: ModelFolder,
    component: str,
    attention: AttentionKernel,
    plan: LoadPlan,
    is_tiled: bool = False,
) -> "WanTransformer":
    """Load one of a folder's transformers.

    If it `is_tiled`, what a token becomes on a CPU does not depend on the tokens beside it. Raise
    `InvalidModel` for one that does not fit its config.
    """
    config = WanTransformerConfig.read(folder, component)
    if is_tiled:
        check_deterministic_width(config.dim, folder.path / component)
    with torch.device("meta"):
        transformer = WanTransformer(config, attention)
        quantize_layers(transformer, TRANSFORMER_LAYERS, plan.kept_in)
    transformer.load(folder, component, plan)
    if plan.device.type == "cpu":
        transformer.set_tiling(*cpu_tilings(is_tiled))
    return transformer.eval()


class WanTransformer(nn.Module):
    """Predicts the velocity of every token, noise minus clip.

    Submodules are named as in diffusers' `WanTransformer3DModel`.
    """

    def __init__(self, config: WanTransformerConfig, attention: AttentionKernel) -> None:
        super().__init__()
        self.config = config
        self.patch_embedding = Linear(config.in_channels * config.patch_cells, config.dim)
        self.condition_embedder = _ConditionEmbedder(config)
        self.blocks = nn.ModuleList(_Block(config, attention) for _ in range(config.num_layers))
        self.scale_shift_table = _parameter(1, 2, config.dim)
        self.proj_out = Linear(config.dim, config.num_outputs * config.patch_cells)

    @property
    def dtype(self) -> torch.dtype:
        return self.proj_out.weight.dtype

    @property
    def component(self) -> Component:
        """Return how its weights may be kept on the host."""
        return Component(self, [Ring(list(self.blocks))], is_denoiser=True)

    def forward(self, packed: PackedWanInput) -> Float[Tensor, "tokens outputs"]:
        layout = packed.layout
        vector, factors = self.condition_embedder.factors(packed.timestep, self.dtype)
        context = self.condition_embedder.context(packed, self.dtype)
        x = self.patch_embedding(packed.tokens.to(self.dtype)).float()
        for block in self.blocks:
            x = block(x, factors, context, layout)
        shift, scale = (self.scale_shift_table + vector[:, None]).unbind(1)
        return self.proj_out(_modulate(x, shift, scale, layout.factors, self.config.eps).to(self.dtype))

    def load(self, folder: ModelFolder, component: str, plan: LoadPlan) -> None:
        """Fill this module, built on the meta device, from a folder's files."""
        # Checkpoints that read images have norms for queries that they do not have.
        unused = tuple(f"blocks.{index}.attn2.norm_added_q." for index in range(len(self.blocks)))
        load_weights(self, folder.weights(component), self.placements(), plan, unused)

    def set_tiling(self, tokens: Tiling, rows: Tiling) -> None:
        """Set the tiles of products over tokens, and of products with one row for each factor row."""
        set_tiling(self, tokens)
        set_tiling(self.condition_embedder.time_embedder, rows)
        self.condition_embedder.time_proj.tiling = rows

    def placements(self) -> dict[str, Placement]:
        """Return the place of each checkpoint tensor: by its own name, but q, k and v into one product."""
        places = {}
        for name, _ in self.named_parameters():
            dtype = torch.float32 if any(part in name.split(".") for part in _IN_FLOAT32) else None
            patch = self.config.patch_size if name == "patch_embedding.weight" else (1, 1)
            fused = next((key for key in _FUSED if f".{key}." in name), None)
            parts = _FUSED[fused] if fused else (None,)
            for index, part in enumerate(parts):
                original = name.replace(f".{fused}.", f".{part}.")
                places[original] = Placement(name, index, len(parts), dtype, patch)
        return places


_FUSED = {
    "to_qkv": ("to_q", "to_k", "to_v"),
    "to_kv": ("to_k", "to_v"),
    "to_added_kv": ("add_k_proj", "add_v_proj"),
}
_IN_FLOAT32 = ("time_embedder", "scale_shift_table", "norm1", "norm2")


@dataclass(frozen=True)
class _Context:
    """The prompts and images that clips attend to; the last row of `text` is the padding of all prompts."""

    text: Float[Tensor, "text_and_padding d"]
    image: Float[Tensor, "image d"] | None


class _ConditionEmbedder(nn.Module):
    """Projects timesteps, prompts and images to the width of the blocks."""

    def __init__(self, config: WanTransformerConfig) -> None:
        super().__init__()
        self.freq_dim = config.freq_dim
        self.time_embedder = _TwoLayers(config.freq_dim, config.dim)
        self.time_proj = Linear(config.dim, _NUM_FACTORS * config.dim)
        self.text_embedder = _TwoLayers(config.text_dim, config.dim, gelu=True)
        self.image_embedder = (
            None
            if config.image_dim is None
            else _ImageEmbedder(config.image_dim, config.dim, config.pos_embed_seq_len)
        )

    def factors(
        self, timestep: Float[Tensor, "rows"], dtype: torch.dtype
    ) -> tuple[Float[Tensor, "rows d"], Float[Tensor, "rows factors d"]]:
        """Return a vector for each factor row, and the factors that blocks add to their tables."""
        first, second = self.time_embedder.linear_1, self.time_embedder.linear_2
        vector = second(F.silu(first(timestep_embedding(timestep, self.freq_dim)))).to(dtype)
        return vector, self.time_proj(F.silu(vector)).unflatten(-1, (_NUM_FACTORS, -1))

    def context(self, packed: PackedWanInput, dtype: torch.dtype) -> _Context:
        """Return the embedded prompts and images; a prompt's padding is zeros that pass the same layers."""
        text = F.pad(packed.text.to(dtype), (0, 0, 0, 1))
        embedded = self.text_embedder.linear_2(self.text_embedder.linear_1(text))
        if self.image_embedder is None:
            return _Context(embedded, None)
        assert packed.image is not None, "the model reads an image's embeddings"
        return _Context(embedded, self.image_embedder(packed.image.to(dtype)))


class _TwoLayers(nn.Module):
    def __init__(self, in_features: int, dim: int, gelu: bool = False) -> None:
        super().__init__()
        self.linear_1 = Linear(in_features, dim, gelu=gelu)
        self.linear_2 = Linear(dim, dim)


class _ImageEmbedder(nn.Module):
    """Projects CLIP's states of an image to the width of the blocks, with the exact GELU.

    Those of a first and a last frame, one after the other, have positions in the two.
    """

    def __init__(self, in_features: int, dim: int, num_positions: int | None) -> None:
        super().__init__()
        self.pos_embed = None if num_positions is None else _parameter(1, num_positions, in_features)
        self.norm1 = _LayerNorm(in_features, _IMAGE_EPS)
        widen = nn.ModuleDict({"proj": Linear(in_features, in_features)})
        layers = nn.ModuleList([widen, nn.Identity(), Linear(in_features, dim)])
        self.ff = nn.ModuleDict({"net": layers})
        self.norm2 = _LayerNorm(dim, _IMAGE_EPS)

    def forward(self, states: Float[Tensor, "image in"]) -> Float[Tensor, "image d"]:
        widen = self.ff.get_submodule("net.0.proj")
        narrow = self.ff.get_submodule("net.2")
        if self.pos_embed is not None:
            pairs = states.unflatten(0, (-1, self.pos_embed.shape[1]))
            states = (pairs + self.pos_embed).flatten(0, 1)
        return self.norm2(narrow(F.gelu(widen(self.norm1(states)))))


class _LayerNorm(nn.Module):
    """A norm in float32, whose result has the dtype of its input."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = _parameter(dim), _parameter(dim), eps

    def forward(self, x: Float[Tensor, "tokens d"]) -> Float[Tensor, "tokens d"]:
        return F.layer_norm(x.float(), x.shape[-1:], self.weight, self.bias, self.eps).to(x.dtype)


class _RootMeanSquareNorm(nn.Module):
    """The learned scale of an RMS norm over the channels of all heads."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = _parameter(dim)


class _SelfAttention(nn.Module):
    def __init__(self, config: WanTransformerConfig, attention: AttentionKernel) -> None:
        super().__init__()
        dim = config.dim
        self.attention, self.num_heads, self.eps = attention, config.num_attention_heads, config.eps
        self.to_qkv = Linear(dim, 3 * dim)
        self.norm_q, self.norm_k = _RootMeanSquareNorm(dim), _RootMeanSquareNorm(dim)
        self.to_out = nn.ModuleList([Linear(dim, dim)])

    def forward(self, x: Float[Tensor, "tokens d"], layout: ClipLayout) -> Float[Tensor, "tokens d"]:
        qkv = self.to_qkv(x).unflatten(-1, (3, -1))
        heads = (self.num_heads, -1)
        query_key = qkv[:, :2].float()
        inverse = _inverse_rms(query_key, self.eps)
        query_key.mul_(torch.stack([self.norm_q.weight, self.norm_k.weight]))
        # The norm's division is part of the rotation, whose factors are far fewer.
        rotate_(query_key.unflatten(-1, heads), layout.rotation[:, None] * inverse)
        _put_back(qkv[:, :2], query_key)
        return self.to_out[0](self.attention(qkv.unflatten(-1, heads), layout.segments).flatten(1))


class _CrossAttention(nn.Module):
    """Attention to the prompt, and to an image beside it with keys of its own."""

    def __init__(self, config: WanTransformerConfig, attention: AttentionKernel) -> None:
        super().__init__()
        dim = config.dim
        self.attention, self.num_heads, self.eps = attention, config.num_attention_heads, config.eps
        self.to_q = Linear(dim, dim)
        self.to_kv = Linear(dim, 2 * dim)
        self.norm_q, self.norm_k = _RootMeanSquareNorm(dim), _RootMeanSquareNorm(dim)
        if config.image_dim is not None:
            self.to_added_kv = Linear(dim, 2 * dim)
            self.norm_added_k = _RootMeanSquareNorm(dim)
        self.to_out = nn.ModuleList([Linear(dim, dim)])

    def forward(
        self, x: Float[Tensor, "tokens d"], context: _Context, layout: ClipLayout
    ) -> Float[Tensor, "tokens d"]:
        query = _normalize(self.to_q(x), self.norm_q, self.eps).to(x.dtype)
        query = query.unflatten(-1, (self.num_heads, -1))
        text = self._key_value(self.to_kv, self.norm_k, context.text)
        attended = self.attention.cross(query, text, layout.text)
        if layout.image is not None:
            assert context.image is not None
            image = self._key_value(self.to_added_kv, self.norm_added_k, context.image)
            attended = attended + self.attention.cross(query, image, layout.image)
        return self.to_out[0](attended.flatten(1))

    def _key_value(
        self, to_key_value: Linear, norm: _RootMeanSquareNorm, states: Float[Tensor, "keys d"]
    ) -> Float[Tensor, "keys 2 heads dim"]:
        key_value = to_key_value(states).unflatten(-1, (2, -1))
        _put_back(key_value[:, 0], _normalize(key_value[:, 0], norm, self.eps))
        return key_value.unflatten(-1, (self.num_heads, -1))


class _Block(nn.Module):
    def __init__(self, config: WanTransformerConfig, attention: AttentionKernel) -> None:
        super().__init__()
        self.eps = config.eps
        self.scale_shift_table = _parameter(1, _NUM_FACTORS, config.dim)
        self.attn1 = _SelfAttention(config, attention)
        self.norm2 = _LayerNorm(config.dim, config.eps)
        self.attn2 = _CrossAttention(config, attention)
        self.ffn = FeedForward(config.dim, config.ffn_dim)

    def forward(
        self,
        x: Float32[Tensor, "tokens d"],
        factors: Float[Tensor, "rows factors d"],
        context: _Context,
        layout: ClipLayout,
    ) -> Float32[Tensor, "tokens d"]:
        """Return the residual stream after this block: `x`, changed in place."""
        rows, dtype = layout.factors, factors.dtype
        shift, scale, gate, ff_shift, ff_scale, ff_gate = (self.scale_shift_table + factors).unbind(1)
        attended = self.attn1(_modulate(x, shift, scale, rows, self.eps).to(dtype), layout)
        _add_gated_(x, attended, gate, rows)
        x.add_(self.attn2(self.norm2(x).to(dtype), context, layout))
        widened = self.ffn(_modulate(x, ff_shift, ff_scale, rows, self.eps).to(dtype))
        _add_gated_(x, widened, ff_gate, rows)
        return x


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape), requires_grad=False)


def _modulate(
    x: Float32[Tensor, "tokens d"],
    shift: Float32[Tensor, "rows d"],
    scale: Float32[Tensor, "rows d"],
    rows: Segments,
    eps: float,
) -> Float32[Tensor, "tokens d"]:
    """Return (1 + scale)·LayerNorm(x) + shift with each token's factors; the norm has no weights of its own.

    Factors are broadcast over the tokens of their row and never repeated in memory.
    """
    normed = F.layer_norm(x, x.shape[-1:], eps=eps)
    scale = 1 + scale
    for which, part in rows.views(normed):
        torch.addcmul(shift[which, None], part, scale[which, None], out=part)
    return normed


def _add_gated_(
    x: Float32[Tensor, "tokens d"],
    change: Float[Tensor, "tokens d"],
    gate: Float32[Tensor, "rows d"],
    rows: Segments,
) -> None:
    """Add gate·change to `x` in place."""
    for (which, part), (_, added) in zip(rows.views(x), rows.views(change), strict=True):
        torch.addcmul(part, added, gate[which, None], out=part)


def _normalize(
    x: Float[Tensor, "tokens d"], norm: _RootMeanSquareNorm, eps: float
) -> Float32[Tensor, "tokens d"]:
    """Divide by the RMS over all heads (Zhang & Sennrich 2019, arXiv:1910.07467), in float32.

    What is in float32 already is changed in place.
    """
    wide = x.float()
    return wide.mul_(_inverse_rms(wide, eps)).mul_(norm.weight)


def _inverse_rms(x: Float32[Tensor, "*rows d"], eps: float) -> Float32[Tensor, "*rows 1"]:
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()


def _put_back(target: Tensor, values: Tensor) -> None:
    """Copy values to where they were read, unless they were changed in place."""
    if target.dtype != values.dtype:
        target.copy_(values)
