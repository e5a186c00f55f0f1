"""CLIP's text encoder, and the layers of both of its encoders (Radford et al. 2021, arXiv:2103.00020).

The reference implementation is transformers' `CLIPTextModel`, whose operations and names of parameters are
kept. Importing transformers for this one class would take longer than to load a small model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from diffuserve.models.layers.adapted.adapters import RowAdapters
from diffuserve.models.layers.linear import Linear, PositionsLinear, name_layers
from diffuserve.models.layers.quantized.quantized_linear import quantize_layers
from diffuserve.models.offload.components import Component, Ring
from diffuserve.models.text.clip_config import ClipConfig, ClipLayersConfig
from diffuserve.models.text.quantized_layers import CLIP_LAYERS
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import Placement, empty_embedding, load_weights, tensor_names

TokenIds = Int[Tensor, "prompts tokens"]
States = Float[Tensor, "prompts tokens dim"]

_MISNUMBERED_EOS = 2  # in older configs; the end is then the token with the highest id
_PREFIX = "text_model."
_PROJECTION = "text_projection."  # stands beside the text model
_IGNORED = ("embeddings.position_ids", f"{_PREFIX}embeddings.position_ids")  # a buffer in older checkpoints


def _quick_gelu(states: Tensor) -> Tensor:
    return states * torch.sigmoid(1.702 * states)


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "quick_gelu": _quick_gelu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}


@dataclass(frozen=True)
class ClipOutput:
    """States after the last layer, normalized, and the one at the end of each prompt, projected if it is.

    `penultimate` are the states before the last layer, as they are.
    """

    sequence: States
    pooled: Float[Tensor, "prompts pooled_dim"]
    penultimate: States


def load_clip(
    config: ClipConfig,
    files: list[Path],
    plan: LoadPlan,
    has_projection: bool = False,
    component: str = "text_encoder",
) -> "ClipTextEncoder":
    """Load a checkpoint of `CLIPTextModel`, whose names may begin with `text_model.`.

    With `has_projection`, of `CLIPTextModelWithProjection`. Adapters find its layers by the `component`.
    """
    with torch.device("meta"):
        encoder = ClipTextEncoder(config, has_projection)
        quantize_layers(encoder, CLIP_LAYERS, plan.kept_in)
    name_layers(encoder, f"{component}.")
    prefix = _PREFIX if any(name.startswith(_PREFIX) for name in tensor_names(files)) else ""
    load_weights(encoder, files, encoder.placements(prefix), plan, ignored_prefixes=_IGNORED)
    return encoder.eval()


class ClipTextEncoder(nn.Module):
    """A causal transformer over the tokens of a prompt."""

    def __init__(self, config: ClipConfig, has_projection: bool = False) -> None:
        super().__init__()
        self._eos_token_id = config.eos_token_id
        self.embeddings = _Embeddings(config)
        self.encoder = ClipLayers(config, is_causal=True)
        self.final_layer_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.text_projection: Linear | None = None
        if has_projection:
            self.text_projection = PositionsLinear(config.hidden_size, config.projection_dim, bias=False)

    @property
    def component(self) -> Component:
        """Return how its weights may be kept on the host."""
        tables = [self.embeddings.token_embedding]
        return Component(self, [Ring(list(self.encoder.layers))], tables, is_encoder=True)

    def placements(self, prefix: str = _PREFIX) -> dict[str, Placement]:
        """Return the place of each checkpoint tensor; by default with the prefix that adapters have."""
        return {
            name if name.startswith(_PROJECTION) else f"{prefix}{name}": Placement(name)
            for name, _ in self.named_parameters()
        }

    def forward(self, ids: TokenIds, adapters: RowAdapters | None = None) -> ClipOutput:
        """Return the states of prompts, each with the adapters of its row."""
        penultimate, last = self.encoder(self.embeddings(ids), adapters)
        sequence = self.final_layer_norm(last)
        ends = sequence[torch.arange(len(ids), device=ids.device), self._ends(ids)]
        return ClipOutput(sequence, self._project(ends, adapters), penultimate)

    def _project(self, ends: Tensor, adapters: RowAdapters | None) -> Float[Tensor, "prompts pooled_dim"]:
        if self.text_projection is None:
            return ends
        return self.text_projection(ends, adapters)

    def _ends(self, ids: TokenIds) -> Int[Tensor, "prompts"]:
        """Return the position of each prompt's end; the padding after it may have the same id."""
        if self._eos_token_id == _MISNUMBERED_EOS:
            return ids.argmax(dim=-1)
        return (ids == self._eos_token_id).int().argmax(dim=-1)


class _Embeddings(nn.Module):
    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        self.token_embedding = empty_embedding(config.vocab_size, config.hidden_size)
        self.position_embedding = empty_embedding(config.max_position_embeddings, config.hidden_size)

    def forward(self, ids: TokenIds) -> States:
        states: Tensor = self.token_embedding(ids) + self.position_embedding.weight[: ids.shape[1]]
        return states


class ClipLayers(nn.Module):
    """The layers of an encoder; in causal ones a token attends to those before it alone."""

    def __init__(self, config: ClipLayersConfig, is_causal: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(config, is_causal) for _ in range(config.num_hidden_layers))

    def forward(self, states: States, adapters: RowAdapters | None = None) -> tuple[States, States]:
        """Return the states before and after the last layer."""
        penultimate = states
        for layer in self.layers:
            penultimate, states = states, layer(states, adapters)
        return penultimate, states


class _Layer(nn.Module):
    def __init__(self, config: ClipLayersConfig, is_causal: bool) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.self_attn = _Attention(config.hidden_size, config.num_attention_heads, is_causal)
        self.layer_norm2 = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.mlp = _Mlp(config)

    def forward(self, states: States, adapters: RowAdapters | None) -> States:
        states = states + self.self_attn(self.layer_norm1(states), adapters)
        states = states + self.mlp(self.layer_norm2(states), adapters)
        return states


class _Attention(nn.Module):
    def __init__(self, dim: int, num_heads: int, is_causal: bool) -> None:
        super().__init__()
        self._num_heads, self._is_causal = num_heads, is_causal
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (PositionsLinear(dim, dim) for _ in range(4))

    def forward(self, states: States, adapters: RowAdapters | None) -> States:
        query, key, value = (
            projection(states, adapters).unflatten(-1, (self._num_heads, -1)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=self._is_causal)
        return self.out_proj(attended.transpose(1, 2).flatten(2), adapters)


class _Mlp(nn.Module):
    def __init__(self, config: ClipLayersConfig) -> None:
        super().__init__()
        self.fc1 = PositionsLinear(config.hidden_size, config.intermediate_size)
        self.fc2 = PositionsLinear(config.intermediate_size, config.hidden_size)
        self._activate = _ACTIVATIONS[config.hidden_act]

    def forward(self, states: States, adapters: RowAdapters | None) -> States:
        return self.fc2(self._activate(self.fc1(states, adapters)), adapters)
