"""The encoders of T5 and UMT5.

Raffel et al. 2020 (arXiv:1910.10683); gated activation: Shazeer 2020 (arXiv:2002.05202); UMT5: Chung et al.
2023 (arXiv:2304.09151).

The reference implementations are transformers' `T5EncoderModel` and `UMT5EncoderModel`, whose operations and
names of parameters are kept. Importing transformers would take longer than to load a small model.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from diffuserve.models.layers.quantized.quantized_linear import input_dtype, quantize_layers
from diffuserve.models.layers.tensor_parallel import Sharding, TensorShard, shard_layers
from diffuserve.models.offload.components import Component, Ring
from diffuserve.models.text.quantized_layers import T5_LAYERS
from diffuserve.models.text.t5_config import T5Config
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import Placement, empty_embedding, load_weights, tensor_names
from diffuserve.parallel.ranks import TensorRanks

TokenIds = Int[Tensor, "prompts tokens"]
States = Float[Tensor, "prompts tokens dim"]
Mask = Bool[Tensor, "prompts tokens"]
Buckets = Int[Tensor, "tokens tokens"]
Bias = Float[Tensor, "_prompts heads tokens tokens"]

_IGNORED = ("decoder.", "lm_head.")  # checkpoints of the whole of T5
_SHARDS = {
    r".*\.SelfAttention\.([qkv]|relative_attention_bias)": Sharding(),
    r".*\.DenseReluDense\.wi(_[01])?": Sharding(),
    r".*\.(SelfAttention\.o|DenseReluDense\.wo)": Sharding(by_inputs=True),
    "shared": Sharding(),
}
"""Attention is cut by heads, which have a bias each, and the table of tokens by features, which ranks gather:
it is a fifth of UMT5. Norms are whole on each rank."""


def _gelu(states: Tensor) -> Tensor:
    """Return the approximation that T5 was trained with, rounded after each operation as the reference."""
    inner = math.sqrt(2.0 / math.pi) * (states + 0.044715 * torch.pow(states, 3.0))
    return 0.5 * states * (1.0 + torch.tanh(inner))


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": _gelu}


def load_t5(
    config: T5Config,
    files: list[Path],
    plan: LoadPlan,
    ranks: TensorRanks | None = None,
) -> "T5Encoder":
    """Load a checkpoint of `T5EncoderModel` or `UMT5EncoderModel`, or the encoder's part of the whole model.

    In float16 the last product of each layer stays in float32, as in the reference: its results exceed
    what float16 can hold. With `ranks` each has a part of the weights, and all of them encode together.
    """
    shares: dict[str, TensorShard] = {}
    with torch.device("meta"):
        encoder = T5Encoder(config)
        quantize_layers(encoder, T5_LAYERS, plan.kept_in)
        if ranks is not None:
            shares = shard_t5(encoder, ranks)
    wide = torch.float32 if plan.dtype == torch.float16 else plan.dtype
    placements = {
        name: Placement(name, dtype=wide if name.endswith(".wo.weight") else None, share=shares.get(name))
        for name, _ in encoder.named_parameters()
    }
    ignored: tuple[str, ...] = _IGNORED
    if "shared.weight" in tensor_names(files):  # some checkpoints repeat it under its other name
        ignored = (*_IGNORED, "encoder.embed_tokens.")
    else:
        placements["encoder.embed_tokens.weight"] = placements.pop("shared.weight")
    load_weights(encoder, files, placements, plan, ignored_prefixes=ignored)
    return encoder.eval()


def shard_t5(encoder: "T5Encoder", ranks: TensorRanks) -> dict[str, TensorShard]:
    """Leave an encoder on the meta device the weights of this rank; return their shares by name."""
    encoder.ranks = ranks
    return shard_layers(encoder, _SHARDS, ranks)


class T5Encoder(nn.Module):
    """A transformer over all tokens of a prompt, or those that a mask keeps: padding is a token otherwise."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.shared = empty_embedding(config.vocab_size, config.d_model)
        self.encoder = _Stack(config)
        self.ranks: TensorRanks | None = None

    @property
    def component(self) -> Component:
        """Return how its weights may be kept on the host."""
        ring = Ring(list(self.encoder.block), apart=list(self.encoder.biases))
        return Component(self, [ring], [self.shared], is_encoder=True)

    def forward(self, ids: TokenIds, mask: Mask | None = None) -> States:
        states = self.shared(ids)
        return self.encoder(states if self.ranks is None else self.ranks.gather(states), mask)


class _Stack(nn.Module):
    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self._config = config
        self._num_biases = 1 if config.has_shared_bias else config.num_layers
        self.block = nn.ModuleList(_Block(config, i < self._num_biases) for i in range(config.num_layers))
        self.final_layer_norm = _RmsNorm(config)

    @property
    def biases(self) -> Iterator[nn.Module]:
        """Yield the tables of biases, which are read before their layers run."""
        return (module for name, module in self.named_modules() if name.endswith(".relative_attention_bias"))

    def forward(self, states: States, mask: Mask | None) -> States:
        buckets = position_buckets(self._config, states.shape[1], states.device)
        for index, block in enumerate(self.block):
            if index < self._num_biases:
                bias = block.layer[0].SelfAttention.position_bias(buckets, mask)  # type: ignore[union-attr,index]
            states = block(states, bias)
        return self.final_layer_norm(states)


class _Block(nn.Module):
    def __init__(self, config: T5Config, has_bias: bool) -> None:
        super().__init__()
        self.layer = nn.ModuleList([_AttentionLayer(config, has_bias), _FeedForwardLayer(config)])

    def forward(self, states: States, bias: Bias) -> States:
        attention, feed_forward = self.layer
        return feed_forward(attention(states, bias))


class _AttentionLayer(nn.Module):
    def __init__(self, config: T5Config, has_bias: bool) -> None:
        super().__init__()
        self.SelfAttention = _Attention(config, has_bias)
        self.layer_norm = _RmsNorm(config)

    def forward(self, states: States, bias: Bias) -> States:
        return states + self.SelfAttention(self.layer_norm(states), bias)


class _FeedForwardLayer(nn.Module):
    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.DenseReluDense = (_GatedFeedForward if config.is_gated else _FeedForward)(config)
        self.layer_norm = _RmsNorm(config)

    def forward(self, states: States) -> States:
        return states + self.DenseReluDense(self.layer_norm(states))


class _Attention(nn.Module):
    """Attention whose scores are not scaled and carry a bias by the distance between tokens."""

    def __init__(self, config: T5Config, has_bias: bool) -> None:
        super().__init__()
        inner = config.num_heads * config.d_kv
        self._config = config
        self.q, self.k, self.v = (nn.Linear(config.d_model, inner, bias=False) for _ in range(3))
        self.o = nn.Linear(inner, config.d_model, bias=False)
        if has_bias:
            self.relative_attention_bias = empty_embedding(
                config.relative_attention_num_buckets, config.num_heads
            )

    def forward(self, states: States, bias: Bias) -> States:
        query, key, value = (
            projection(states).unflatten(-1, (-1, self._config.d_kv)).transpose(1, 2)
            for projection in (self.q, self.k, self.v)
        )
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=1.0)
        return self.o(attended.transpose(1, 2).flatten(2))

    def position_bias(self, buckets: Buckets, mask: Mask | None) -> Bias:
        """Return the bias of each pair of positions, so low that nothing attends where `mask` is false."""
        bias: Tensor = self.relative_attention_bias(buckets).permute(2, 0, 1)[None]
        if mask is not None:
            bias = bias.masked_fill(~mask[:, None, None, :], torch.finfo(bias.dtype).min)
        return bias.contiguous()


def position_buckets(config: T5Config, num_tokens: int, device: torch.device) -> Buckets:
    """Return the bucket of the distance of each pair of positions."""
    positions = torch.arange(num_tokens, device=device)
    return distance_buckets(
        positions[None, :] - positions[:, None],
        config.relative_attention_num_buckets,
        config.relative_attention_max_distance,
    )


def distance_buckets(
    distances: Int[Tensor, "*shape"], num_buckets: int, max_distance: int
) -> Int[Tensor, "*shape"]:
    """Return the bucket of each distance: half of the buckets are for each sign.

    Half of those hold one distance each; the others grow in proportion to it, up to `max_distance`, and the
    last one holds all beyond.
    """
    per_sign = num_buckets // 2
    num_exact = per_sign // 2
    sizes = distances.abs()
    growth = torch.log(sizes.float() / num_exact) / math.log(max_distance / num_exact)
    large = (num_exact + (growth * (per_sign - num_exact)).long()).clamp(max=per_sign - 1)
    return (distances > 0).long() * per_sign + torch.where(sizes < num_exact, sizes, large)


class _RmsNorm(nn.Module):
    """Root mean square norm (Zhang & Sennrich 2019, arXiv:1910.07467), computed in float32."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.d_model))
        self._epsilon = config.layer_norm_epsilon

    def forward(self, states: States) -> States:
        variance = states.float().square().mean(-1, keepdim=True)
        return self.weight * (states * torch.rsqrt(variance + self._epsilon)).to(self.weight.dtype)


class _FeedForward(nn.Module):
    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.wi = nn.Linear(config.d_model, config.d_ff, bias=False)
        self.wo = nn.Linear(config.d_ff, config.d_model, bias=False)
        self._activate = _ACTIVATIONS[config.activation]

    def forward(self, states: States) -> States:
        return self.wo(self._activate(self.wi(states)).to(input_dtype(self.wo)))


class _GatedFeedForward(nn.Module):
    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.wi_0, self.wi_1 = (nn.Linear(config.d_model, config.d_ff, bias=False) for _ in range(2))
        self.wo = nn.Linear(config.d_ff, config.d_model, bias=False)
        self._activate = _ACTIVATIONS[config.activation]

    def forward(self, states: States) -> States:
        gated = self._activate(self.wi_0(states)) * self.wi_1(states)
        return self.wo(gated.to(input_dtype(self.wo)))
