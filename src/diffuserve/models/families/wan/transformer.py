"""Wan's transformer over packed sequences.

Wan Team 2025 (arXiv:2503.20314). The reference implementation is diffusers' `WanTransformer3DModel`, whose
tensor names the checkpoints use. Here the tokens of all requests run in one row (see `packing`), and each is
modulated by its own request's timestep. Norms, factors and residual sums are in float32 whatever the model's
dtype, as in the reference, and so is the residual stream between them, which the reference rounds.

Keys and values of prompts are computed in each step although they do not change: without padding they are a
hundredth of a step's work, and keeping them would take much memory.

Shapes: `tokens` counts packed tokens of clips, `rows` factor rows, `text` and `image` the tokens of prompts
and the embeddings of images; `d` is the width, the whole one also where ranks share the weights.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32
from torch import Tensor, nn

from diffuserve.models.families.wan.attention import (
    ATTENTION_SHARDS,
    ClipAttention,
    ClipContext,
    ContextAttention,
    share_attentions,
)
from diffuserve.models.families.wan.config import TRANSFORMER_LAYERS, WanTransformerConfig
from diffuserve.models.families.wan.packing import NO_CLIP_ADAPTERS, ClipAdapters, ClipLayout
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.adapted.adapters import RowAdapters
from diffuserve.models.layers.attention import AttentionKernel
from diffuserve.models.layers.feed_forward import FeedForward
from diffuserve.models.layers.linear import (
    Linear,
    Tiling,
    check_deterministic_width,
    cpu_tilings,
    name_layers,
    set_tiling,
)
from diffuserve.models.layers.quantized.quantized_linear import quantize_layers
from diffuserve.models.layers.segments import Segments
from diffuserve.models.layers.tensor_parallel import Sharding, TensorShard, shard_layers
from diffuserve.models.layers.timestep import timestep_embedding
from diffuserve.models.offload.components import Component, Ring
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import Placement, load_weights
from diffuserve.parallel.ranks import TensorRanks

_NUM_FACTORS = 6  # shift, scale and gate of the attention, and of the feed-forward
_IMAGE_EPS = 1e-5
_SHARDS = {
    **ATTENTION_SHARDS,
    r".*\.ffn\.net\.0\.proj": Sharding(),
    r".*\.ffn\.net\.2": Sharding(by_inputs=True),
    r"condition_embedder\.time_proj": Sharding(parts=(1,) * _NUM_FACTORS),
}
"""How ranks share the weights. Each has some channels of each factor, and gathers them from the others; the
other embedders, tables of factors, norms of tokens and the last product are whole on each."""


@dataclass(frozen=True)
class PackedWanInput:
    """The input of a forward pass, in the order of the layout's sequences.

    `tokens` are patches of latents, `timestep` (0…1000) one value for each factor row, `text` the states of
    prompts, each with zeros for its padding, and `image` the embeddings of images, for models that read them.
    """

    tokens: Float[Tensor, "tokens inputs"]
    timestep: Float[Tensor, "rows"]
    text: Float[Tensor, "text text_dim"]
    layout: ClipLayout
    image: Float[Tensor, "image image_dim"] | None = None
    adapters: ClipAdapters = NO_CLIP_ADAPTERS


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
        if plan.ranks is not None and plan.ranks.tensor is not None:
            transformer.share_weights(plan.ranks.tensor)
    transformer.load(folder, component, plan)
    name_layers(transformer, f"{component}.")
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
        self._shares: dict[str, TensorShard] = {}

    def share_weights(self, ranks: TensorRanks) -> None:
        """Keep only the weights of this rank; called before any are loaded.

        From then on all ranks run a forward pass together.
        """
        self._shares = shard_layers(self, _SHARDS, ranks)
        self.condition_embedder.ranks = ranks
        share_attentions(self, ranks)

    @property
    def dtype(self) -> torch.dtype:
        return self.proj_out.weight.dtype

    @property
    def component(self) -> Component:
        """Return how its weights may be kept on the host."""
        return Component(self, [Ring(list(self.blocks))], is_denoiser=True)

    def forward(self, packed: PackedWanInput) -> Float[Tensor, "tokens outputs"]:
        layout, adapters = packed.layout, packed.adapters.tokens
        vector, factors = self.condition_embedder.factors(packed, self.dtype)
        context = self.condition_embedder.context(packed, self.dtype)
        x = self.patch_embedding(packed.tokens.to(self.dtype), adapters).float()
        for block in self.blocks:
            x = block(x, factors, context, layout, adapters)
        shift, scale = (self.scale_shift_table + vector[:, None]).unbind(1)
        modulated = _modulate(x, shift, scale, layout.factors, self.config.eps)
        return self.proj_out(modulated.to(self.dtype), adapters)

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
            share = self._shares.get(name)
            for index, part in enumerate(parts):
                original = name.replace(f".{fused}.", f".{part}.")
                own = None if share is None else share.part(index, len(parts))
                places[original] = Placement(name, index, len(parts), dtype, patch, own)
        return places


_FUSED = {
    "to_qkv": ("to_q", "to_k", "to_v"),
    "to_kv": ("to_k", "to_v"),
    "to_added_kv": ("add_k_proj", "add_v_proj"),
}
_IN_FLOAT32 = ("time_embedder", "scale_shift_table", "norm1", "norm2")


class _ConditionEmbedder(nn.Module):
    """Projects timesteps, prompts and images to the width of the blocks."""

    def __init__(self, config: WanTransformerConfig) -> None:
        super().__init__()
        self.ranks: TensorRanks | None = None
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
        self, packed: PackedWanInput, dtype: torch.dtype
    ) -> tuple[Float[Tensor, "rows d"], Float[Tensor, "rows factors d"]]:
        """Return a vector for each factor row, and the factors that blocks add to their tables."""
        first, second = self.time_embedder.linear_1, self.time_embedder.linear_2
        adapters = packed.adapters.factors
        waves = timestep_embedding(packed.timestep, self.freq_dim)
        vector = second(F.silu(first(waves, adapters)), adapters).to(dtype)
        factors = self.time_proj(F.silu(vector), adapters).unflatten(-1, (_NUM_FACTORS, -1))
        return vector, factors if self.ranks is None else self.ranks.gather(factors)

    def context(self, packed: PackedWanInput, dtype: torch.dtype) -> ClipContext:
        """Return the embedded prompts and images; a prompt's padding is zeros that pass the same layers."""
        adapters = packed.adapters
        widened = self.text_embedder.linear_1(packed.text.to(dtype), adapters.text)
        embedded = self.text_embedder.linear_2(widened, adapters.text)
        if self.image_embedder is None:
            return ClipContext(embedded, None, adapters.text)
        assert packed.image is not None, "the model reads an image's embeddings"
        image = self.image_embedder(packed.image.to(dtype), adapters.image)
        return ClipContext(embedded, image, adapters.text, adapters.image)


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

    def forward(
        self, states: Float[Tensor, "image in"], adapters: RowAdapters | None
    ) -> Float[Tensor, "image d"]:
        widen = self.ff.get_submodule("net.0.proj")
        narrow = self.ff.get_submodule("net.2")
        if self.pos_embed is not None:
            pairs = states.unflatten(0, (-1, self.pos_embed.shape[1]))
            states = (pairs + self.pos_embed).flatten(0, 1)
        return self.norm2(narrow(F.gelu(widen(self.norm1(states), adapters)), adapters))


class _LayerNorm(nn.Module):
    """A norm in float32, whose result has the dtype of its input."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = _parameter(dim), _parameter(dim), eps

    def forward(self, x: Float[Tensor, "tokens d"]) -> Float[Tensor, "tokens d"]:
        return F.layer_norm(x.float(), x.shape[-1:], self.weight, self.bias, self.eps).to(x.dtype)


class _Block(nn.Module):
    def __init__(self, config: WanTransformerConfig, attention: AttentionKernel) -> None:
        super().__init__()
        self.eps = config.eps
        self.scale_shift_table = _parameter(1, _NUM_FACTORS, config.dim)
        self.attn1 = ClipAttention(config, attention)
        self.norm2 = _LayerNorm(config.dim, config.eps)
        self.attn2 = ContextAttention(config, attention)
        self.ffn = FeedForward(config.dim, config.ffn_dim)

    def forward(
        self,
        x: Float32[Tensor, "tokens d"],
        factors: Float[Tensor, "rows factors d"],
        context: ClipContext,
        layout: ClipLayout,
        adapters: RowAdapters | None,
    ) -> Float32[Tensor, "tokens d"]:
        """Return the residual stream after this block: `x`, changed in place."""
        rows, dtype = layout.factors, factors.dtype
        shift, scale, gate, ff_shift, ff_scale, ff_gate = (self.scale_shift_table + factors).unbind(1)
        attended = self.attn1(_modulate(x, shift, scale, rows, self.eps).to(dtype), layout, adapters)
        _add_gated_(x, attended, gate, rows)
        x.add_(self.attn2(self.norm2(x).to(dtype), context, layout, adapters))
        widened = self.ffn(_modulate(x, ff_shift, ff_scale, rows, self.eps).to(dtype), adapters)
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
