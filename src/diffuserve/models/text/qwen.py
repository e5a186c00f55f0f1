"""The language models Qwen2.5, Qwen3 and Mistral, of which denoisers read hidden states.

Qwen2.5: arXiv:2412.15115; Qwen3: arXiv:2505.09388; Mistral: arXiv:2310.06825. The reference implementations
are transformers' `Qwen2_5_VLTextModel`, `Qwen3Model` and `MistralModel`, whose names of parameters are kept,
but that gates and values of the feed-forward network are one product. A model is as deep as the states that
are read: of the layers behind nothing is read from a file. Prompts of all lengths run in one row.

Shapes: `tokens` are the packed tokens of all prompts, `d` is the width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Bool, Complex64, Float, Int
from torch import Tensor, nn

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.layers.attention import AttentionKernel
from diffuserve.models.layers.gated_feed_forward import GATED_SHARDS, GatedFeedForward
from diffuserve.models.layers.linear import Linear, cpu_tilings, set_tiling
from diffuserve.models.layers.quantized.quantized_linear import quantize_layers
from diffuserve.models.layers.rms_norm import TokenRmsNorm
from diffuserve.models.layers.rotary import rotate_halves, section_rotations
from diffuserve.models.layers.segments import CausalSegments
from diffuserve.models.layers.tensor_parallel import Sharding, TensorShard, shard_layers
from diffuserve.models.machine.devices import to_device
from diffuserve.models.offload.components import Component, Ring
from diffuserve.models.text.quantized_layers import QWEN_LAYERS
from diffuserve.models.text.qwen_config import QwenConfig
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import Placement, empty_embedding, load_weights, tensor_names
from diffuserve.parallel.ranks import TensorRanks

States = Float[Tensor, "tokens d"]
Rotation = Complex64[Tensor, "tokens half"]

_EMBEDDING = "embed_tokens.weight"
_PARTS = {"mlp.linear_in.": ("mlp.gate_proj.", "mlp.up_proj."), "mlp.linear_out.": ("mlp.down_proj.",)}
_OTHERS = ("lm_head.", "visual.", "vision_tower.", "multi_modal_projector.")
"""Parts of whole models beside the language model; each may stand under `model.` or `language_model.`."""
_SHARDS = {
    r"layers\.\d+\.self_attn\.[qkv]_proj": Sharding(),
    r"layers\.\d+\.self_attn\.o_proj": Sharding(by_inputs=True),
    **{rf"layers\.\d+\.mlp\.{name}": sharding for name, sharding in GATED_SHARDS.items()},
    "embed_tokens": Sharding(),
}
"""Attention is cut by heads of keys and values, and the table of tokens by features, which ranks gather: it
is a tenth of Qwen3-4B. Norms are whole on each rank."""


@dataclass(frozen=True)
class PackedPrompts:
    """The tokens of several prompts in one row; at `image_at` are those of images.

    A position has an axis, or frame, row and column for models that read images; those of text are equal.
    """

    ids: Int[Tensor, "tokens"]
    segments: CausalSegments
    positions: Int[Tensor, "tokens axes"]
    lengths: tuple[int, ...]
    image_at: Int[Tensor, "image_tokens"] | None = None

    @classmethod
    def of(cls, prompts: Sequence[Int[Tensor, "_"]], device: torch.device) -> "PackedPrompts":
        """Pack prompts of any lengths, which have no padding."""
        lengths = tuple(map(len, prompts))
        positions = torch.cat([torch.arange(length) for length in lengths])[:, None]
        ids, places = (to_device(each, device) for each in (torch.cat(list(prompts)), positions))
        return cls(ids, CausalSegments.of(lengths, device), places, lengths)

    @classmethod
    def padded(
        cls, ids: Int[Tensor, "prompts length"], mask: Bool[Tensor, "prompts length"], device: torch.device
    ) -> "PackedPrompts":
        """Pack prompts with their padding, where `mask` is false: it has states too, but nothing reads it."""
        num_prompts, length = ids.shape
        positions = torch.arange(length).repeat(num_prompts)[:, None]
        row, places = (to_device(each, device) for each in (ids.flatten(), positions))
        return cls(row, CausalSegments.padded(mask, device), places, (length,) * num_prompts)

    @classmethod
    def with_images(
        cls,
        prompts: Sequence[Int[Tensor, "_"]],
        grids: Sequence[Sequence[tuple[int, int]]],
        image_token: int,
        device: torch.device,
    ) -> "PackedPrompts":
        """Pack prompts in which the first tokens `image_token` stand for images, one for each.

        `grids` are the rows and columns of tokens of each prompt's images. As the language model was trained,
        an image stands at one position of text, from which its rows and columns go on. Raise `ValueError` for
        a prompt with fewer such tokens.
        """
        parts = [_with_images(ids, own, image_token) for ids, own in zip(prompts, grids, strict=True)]
        ids, positions, are_image = (torch.cat(each) for each in zip(*parts, strict=True))
        lengths = tuple(len(own) for own, _, _ in parts)
        row, places, image_at = (to_device(x, device) for x in (ids, positions, are_image.nonzero()[:, 0]))
        return cls(row, CausalSegments.of(lengths, device), places, lengths, image_at)

    def in_a_line(self) -> "PackedPrompts":
        """Return the same prompts with images' tokens one after another, as if they were text.

        With transformers 5 diffusers' `QwenImageEditPipeline` and `QwenImageEditPlusPipeline` place them so:
        they do not hand on `mm_token_type_ids`, without which positions of images are not computed.
        """
        positions = torch.cat([torch.arange(length) for length in self.lengths])[:, None]
        return replace(self, positions=to_device(positions, self.ids.device))


def _with_images(
    ids: Int[Tensor, "_"], grids: Sequence[tuple[int, int]], image_token: int
) -> tuple[Int[Tensor, "tokens"], Int[Tensor, "tokens 3"], Bool[Tensor, "tokens"]]:
    """Return a prompt's ids and positions with its images' tokens among them, and which are those."""
    places = (ids == image_token).nonzero()[: len(grids), 0]
    if len(places) < len(grids):
        raise ValueError(f"{len(grids)} images, but {len(places)} tokens {image_token} that stand for one")
    counts, are_image = torch.ones_like(ids), torch.zeros_like(ids, dtype=torch.bool)
    counts[places], are_image[places] = torch.tensor([rows * columns for rows, columns in grids]), True
    starts = torch.ones_like(ids)  # of the positions after each token
    starts[places] = torch.tensor([max(grid) for grid in grids])
    positions = (starts.cumsum(0) - starts)[:, None].expand(-1, 3).repeat_interleave(counts, dim=0)
    are_image = are_image.repeat_interleave(counts)
    positions[are_image] += torch.cat([_cells(*grid) for grid in grids])
    return ids.repeat_interleave(counts), positions, are_image


def _cells(rows: int, columns: int) -> Int[Tensor, "cells 3"]:
    """Return frame, row and column of an image's tokens, row by row."""
    return torch.cartesian_prod(torch.arange(1), torch.arange(rows), torch.arange(columns)).view(-1, 3)


def load_qwen(
    config: QwenConfig,
    files: Sequence[Path],
    plan: LoadPlan,
    attention: AttentionKernel,
    states: Sequence[int] = (-1,),
    ranks: TensorRanks | None = None,
) -> "QwenModel":
    """Load the language model of a checkpoint; `states` are indices of transformers' `hidden_states`.

    With `ranks` each has a part of the weights, and all of them encode together. Raise `InvalidModel` for
    tensors that are missing or unexpected, and for states that the model does not have.
    """
    shares: dict[str, TensorShard] = {}
    with torch.device("meta"):
        model = QwenModel(config, config.states_to_read(states, files[0].parent), attention)
        quantize_layers(model, QWEN_LAYERS, plan.kept_in)
        if ranks is not None:
            shares, model.ranks = shard_layers(model, _SHARDS, ranks), ranks
    names = tensor_names(files)
    prefix = _prefix(names, files[0].parent)
    load_weights(model, files, gated_placements(model, prefix, shares), plan, _ignored(names, model, prefix))
    if plan.device.type == "cpu":
        set_tiling(model, cpu_tilings(plan.deterministic)[0])
    return model.eval()


class QwenModel(nn.Module):
    """A causal transformer over the tokens of all prompts, as deep as the `states` that are read."""

    def __init__(self, config: QwenConfig, states: tuple[int, ...], attention: AttentionKernel) -> None:
        super().__init__()
        self.config, self.states = config, states
        self.ranks: TensorRanks | None = None
        self.embed_tokens = empty_embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(_Layer(config, attention) for _ in range(max(states)))
        is_normalized = config.num_hidden_layers in states
        self.norm = TokenRmsNorm(config.hidden_size, config.rms_norm_eps) if is_normalized else nn.Identity()

    @property
    def component(self) -> Component:
        """Return how its weights may be kept on the host."""
        return Component(self, [Ring(list(self.layers))], [self.embed_tokens], is_encoder=True)

    def forward(
        self, prompts: PackedPrompts, images: Float[Tensor, "image_tokens d"] | None = None
    ) -> tuple[States, ...]:
        """Return the chosen states of all tokens, those of each prompt after those of the one before.

        `images` are tokens by a vision tower, instead of the embeddings of their places.
        """
        config, x = self.config, self.embed_tokens(prompts.ids)
        if self.ranks is not None:
            x = self.ranks.gather(x)
        if images is not None and prompts.image_at is not None:
            x = x.index_copy(0, prompts.image_at, images)
        rotation = section_rotations(
            prompts.positions, config.dim_of_head, config.rope_sections, config.theta
        )
        found = {0: x}
        for number, layer in enumerate(self.layers, start=1):
            found[number] = x = layer(x, rotation, prompts.segments)
        found[config.num_hidden_layers] = self.norm(x)
        return tuple(found[index] for index in self.states)


class _Layer(nn.Module):
    def __init__(self, config: QwenConfig, attention: AttentionKernel) -> None:
        super().__init__()
        self.self_attn = _Attention(config, attention)
        self.mlp = GatedFeedForward(config.hidden_size, config.intermediate_size)
        self.input_layernorm, self.post_attention_layernorm = (
            TokenRmsNorm(config.hidden_size, config.rms_norm_eps) for _ in range(2)
        )

    def forward(self, x: States, rotation: Rotation, segments: CausalSegments) -> States:
        x = x + self.self_attn(self.input_layernorm(x), rotation, segments)
        return x + self.mlp(self.post_attention_layernorm(x))


class _Attention(nn.Module):
    """Causal attention in which several heads of queries share a head of keys and values."""

    def __init__(self, config: QwenConfig, attention: AttentionKernel) -> None:
        super().__init__()
        width, self.head_dim, self.attention = config.hidden_size, config.dim_of_head, attention
        queries, keys = (
            heads * self.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads)
        )
        self.q_proj = Linear(width, queries, bias=config.has_biases)
        self.k_proj = Linear(width, keys, bias=config.has_biases)
        self.v_proj = Linear(width, keys, bias=config.has_biases)
        self.o_proj = Linear(queries, width, bias=False)
        self.q_norm, self.k_norm = (_head_norm(config) for _ in range(2))

    def forward(self, x: States, rotation: Rotation, segments: CausalSegments) -> States:
        query, key, value = (
            product(x).unflatten(-1, (-1, self.head_dim))
            for product in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = rotate_halves(self.q_norm(query), rotation), rotate_halves(self.k_norm(key), rotation)
        attended = self.attention.causal(query, torch.stack([key, value], dim=1), segments)
        return self.o_proj(attended.flatten(1))


def _head_norm(config: QwenConfig) -> nn.Module:
    return TokenRmsNorm(config.dim_of_head, config.rms_norm_eps) if config.has_head_norms else nn.Identity()


def _prefix(names: set[str], origin: Path) -> str:
    """Return what stands before the names of the language model's tensors in a checkpoint."""
    found = [name.removesuffix(_EMBEDDING) for name in names if name.endswith(_EMBEDDING)]
    if len(found) != 1:
        raise InvalidModel(f"{origin}: has {len(found)} tensors {_EMBEDDING}, not one")
    return found[0]


def gated_placements(model: nn.Module, prefix: str, shares: dict[str, TensorShard]) -> dict[str, Placement]:
    """Return the place of each tensor under `prefix`: by its own name, gates and values in one product."""
    places = {}
    for name, _ in model.named_parameters():
        fused = next((key for key in _PARTS if key in name), "")
        parts, share = _PARTS.get(fused, ("",)), shares.get(name)
        for index, part in enumerate(parts):
            own = share if share is None or len(parts) == 1 else share.part(index, len(parts))
            original = name.replace(fused, part) if fused else name
            places[prefix + original] = Placement(name, index, len(parts), share=own)
    return places


def _ignored(names: set[str], model: QwenModel, prefix: str) -> tuple[str, ...]:
    """Return the beginnings of names of tensors that are not read."""
    others = tuple(f"{before}{part}" for before in ("", "model.", "language_model.") for part in _OTHERS)
    layers = range(len(model.layers), model.config.num_hidden_layers)
    behind = tuple(f"{prefix}layers.{index}." for index in layers)
    return (*others, *behind, *((f"{prefix}norm.",) if isinstance(model.norm, nn.Identity) else ()))
