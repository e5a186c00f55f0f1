"""The shape of a FLUX.2 checkpoint. Importing this file loads no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, with_config

from diffuserve.domain.models.config import SCHEMA, Depth, Width, parse_config
from diffuserve.domain.models.cost import Workload
from diffuserve.models.families.packed_images.rotary_axes import check_axes
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.quantized.quantized_layers import QuantizedLayers

TRANSFORMER_LAYERS = QuantizedLayers(
    r"transformer_blocks\.\d+\.(attn\.(to_(qkv|q|k|v|out\.0|add_out)|add_(qkv|q|k|v)_proj)"
    r"|ff(_context)?\.linear_(in|out))"
    r"|single_transformer_blocks\.\d+\.attn\.(to_qkv_mlp_proj|to_out)"
)
"""All products of the blocks. The modulations and embedders, on which everything depends, are small."""
PATCH = 2  # a token is a 2×2 patch of the latent image
RATIO = 3  # of a feed-forward network's width to a token's
_TRANSFORMER = "transformer/config.json"
HeadDim = Annotated[int, Field(ge=2, le=512)]
_Epsilon = Annotated[float, Field(ge=1e-6, le=1e-6)]  # that of the shared layers


@with_config(SCHEMA)
@dataclass(frozen=True)
class Flux2Config:
    """The numbers of a checkpoint's `transformer/config.json` that shape the network."""

    patch_size: Literal[1] = 1
    in_channels: Width = 128
    out_channels: Width | None = None
    num_layers: Depth = 8
    num_single_layers: Depth = 48
    attention_head_dim: HeadDim = 128
    num_attention_heads: Annotated[int, Field(ge=1, le=512)] = 48
    joint_attention_dim: Width = 15_360
    timestep_guidance_channels: Annotated[int, Field(ge=2, le=65_536, multiple_of=2)] = 256
    mlp_ratio: Annotated[float, Field(ge=RATIO, le=RATIO)] = RATIO
    axes_dims_rope: tuple[HeadDim, HeadDim, HeadDim, HeadDim] = (32, 32, 32, 32)
    rope_theta: Annotated[int, Field(ge=2, le=1 << 30)] = 2_000
    eps: _Epsilon = 1e-6
    guidance_embeds: bool = True

    @property
    def dim(self) -> int:
        """Width of the residual stream."""
        return self.num_attention_heads * self.attention_head_dim

    @property
    def inner_dim(self) -> int:
        """Width of a feed-forward network between its two products."""
        return RATIO * self.dim

    @property
    def num_outputs(self) -> int:
        """Channels of a predicted token, which equal those of a latent token."""
        return self.out_channels or self.in_channels

    @property
    def token_operations(self) -> int:
        """Operations for each token of a step: two for each weight of the layers of its own stream.

        A double block has as many weights for text as for image, of which a token uses one half.
        """
        attention, feed_forward = 4 * self.dim**2, 3 * self.dim * self.inner_dim
        return 2 * (attention + feed_forward) * (self.num_layers + self.num_single_layers)

    @property
    def pair_operations(self) -> int:
        """Operations of attention per pair of tokens: four per channel."""
        return 4 * self.dim * (self.num_layers + self.num_single_layers)

    def step_bytes(self, workload: Workload, item_bytes: int) -> int:
        """Predict the bytes of residual streams, q, k, v, and one block's feed-forward and sums."""
        return workload.step_tokens * self.dim * item_bytes * 32

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], origin: str = _TRANSFORMER) -> "Flux2Config":
        """Build a config from diffusers' own; names that do not shape the network are ignored.

        Raise `InvalidModel`, which names `origin`, for a value of another type or out of bounds.
        """
        config = parse_config(cls, values, origin)
        check_axes(config.axes_dims_rope, config.attention_head_dim, origin)
        return config

    @classmethod
    def read(cls, folder: ModelFolder) -> "Flux2Config":
        return cls.from_dict(*folder.config("transformer"))


def is_klein(folder: ModelFolder) -> bool:
    """Return whether a model is a klein, which guides by two passes or never; dev's guidance is an input."""
    return folder.pipeline_class != "Flux2Pipeline"


def is_distilled(folder: ModelFolder) -> bool:
    """Return whether a klein was distilled to few steps, which need no guidance."""
    return bool(folder.index.get("is_distilled", False))
