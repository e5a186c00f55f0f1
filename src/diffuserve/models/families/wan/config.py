"""The shape of a Wan checkpoint's transformer. Importing this file loads no torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, with_config

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.config import SCHEMA, Depth, Width, parse_config
from diffuserve.domain.models.cost import Workload
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.quantized.quantized_layers import QuantizedLayers

TRANSFORMER_LAYERS = QuantizedLayers(
    r"blocks\.\d+\.(attn[12]\.(to_(qkv|kv|q|k|v|added_kv|out\.0)|add_[kv]_proj)|ffn\.net\.(0\.proj|2))"
)
"""All products of the blocks; not the embedders, whose results all blocks read, nor the last product."""
TEXT_TOKENS = 512  # length of a padded prompt, all of which models attend to
_TRANSFORMER = "transformer/config.json"
Patch = Annotated[int, Field(ge=1, le=16)]


@with_config(SCHEMA)
@dataclass(frozen=True)
class WanTransformerConfig:
    """The values of `transformer/config.json` that shape the network, with diffusers' names and defaults.

    Models that are conditioned on an image by CLIP have an `image_dim`, and `added_kv_proj_dim` is then the
    width of the residual stream. Those of a first and a last frame have `pos_embed_seq_len` positions, one
    for each token of the two.
    """

    patch_size: tuple[Literal[1], Patch, Patch] = (1, 2, 2)
    num_attention_heads: Annotated[int, Field(ge=1, le=512)] = 40
    attention_head_dim: Annotated[int, Field(ge=6, le=512, multiple_of=2)] = 128
    in_channels: Width = 16
    out_channels: Width | None = 16
    text_dim: Width = 4096
    freq_dim: Annotated[int, Field(ge=2, le=65_536, multiple_of=2)] = 256
    ffn_dim: Width = 13824
    num_layers: Depth = 40
    cross_attn_norm: Literal[True] = True
    qk_norm: Literal["rms_norm_across_heads"] = "rms_norm_across_heads"
    eps: Annotated[float, Field(gt=0, le=1)] = 1e-6
    image_dim: Width | None = None
    added_kv_proj_dim: Width | None = None
    rope_max_seq_len: Width = 1024
    pos_embed_seq_len: Width | None = None

    @property
    def dim(self) -> int:
        """Width of the residual stream."""
        return self.num_attention_heads * self.attention_head_dim

    @property
    def num_outputs(self) -> int:
        """Channels of the predicted latents."""
        return self.out_channels or self.in_channels

    @property
    def patch_cells(self) -> int:
        """Latent cells of a token."""
        return math.prod(self.patch_size)

    @property
    def axes_dims(self) -> tuple[int, int, int]:
        """Rotary channels of time, rows and columns."""
        side = 2 * (self.attention_head_dim // 6)
        return (self.attention_head_dim - 2 * side, side, side)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], origin: str = _TRANSFORMER) -> "WanTransformerConfig":
        """Build a config from diffusers' own. Raise `InvalidModel`, which names `origin` and the value."""
        config = parse_config(cls, values, origin)
        expected = None if config.image_dim is None else config.dim
        if config.added_kv_proj_dim != expected:
            raise InvalidModel(
                f"{origin}: added_kv_proj_dim={config.added_kv_proj_dim} must be {expected} where image_dim="
                f"{config.image_dim} and the residual stream has {config.dim} channels"
            )
        return config

    @classmethod
    def read(cls, folder: ModelFolder, component: str = "transformer") -> "WanTransformerConfig":
        """Read the config of one of a folder's transformers."""
        return cls.from_dict(*folder.config(component))

    @property
    def num_parameters(self) -> int:
        """The scalars of the transformer's weights."""
        dim, outputs = self.dim, self.num_outputs * self.patch_cells
        self_attention = 4 * (dim * dim + dim) + 2 * dim
        block = 2 * self_attention + 2 * dim * self.ffn_dim + self.ffn_dim + dim + 2 * dim + 6 * dim
        embedders = (self.freq_dim + dim + 2) * dim + (dim + 1) * 6 * dim + (self.text_dim + dim + 2) * dim
        ends = (self.in_channels * self.patch_cells + 1) * dim + (dim + 1) * outputs + 2 * dim
        return self.num_layers * (block + self._image_block) + embedders + ends + self._image_embedder

    @property
    def token_operations(self) -> int:
        """Operations per token of a pass: two per parameter, and attention to a prompt of 512 tokens."""
        return 2 * self.num_parameters + self.pair_operations * TEXT_TOKENS

    @property
    def pair_operations(self) -> int:
        """Operations of self-attention per pair of tokens: four per channel."""
        return 4 * self.dim * self.num_layers

    def step_bytes(self, workload: Workload, item_bytes: int) -> int:
        """Predict the bytes of the residual stream, its norms, q, k, v, and one block's feed-forward."""
        return workload.step_tokens * (self.dim * (8 * item_bytes + 20) + self.ffn_dim * 2 * item_bytes)

    @property
    def _image_block(self) -> int:
        return 0 if self.image_dim is None else 2 * (self.dim * self.dim + self.dim) + self.dim

    @property
    def _image_embedder(self) -> int:
        width, positions = self.image_dim, self.pos_embed_seq_len or 0
        embedder = 0 if width is None else 2 * width + (width + 1) * (width + self.dim) + 2 * self.dim
        return embedder + positions * (width or 0)
