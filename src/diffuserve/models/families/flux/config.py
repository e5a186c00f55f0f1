"""The shape of a FLUX.1 checkpoint. Importing this file loads no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, with_config

from diffuserve.domain.models.config import SCHEMA, Depth, Width, parse_config
from diffuserve.domain.models.cost import Workload
from diffuserve.models.families.packed_images.rotary_axes import check_axes
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.quantized.quantized_layers import QuantizedLayers

TRANSFORMER_LAYERS = QuantizedLayers(
    r"transformer_blocks\.\d+\.(attn\.(to_(qkv|q|k|v|out\.0|add_out)|add_(qkv|q|k|v)_proj)"
    r"|ff(_context)?\.net\.(0\.proj|2))"
    r"|single_transformer_blocks\.\d+\.(attn\.to_(qkv|q|k|v)|proj_mlp|proj_out)"
)
"""All products of the blocks, but the modulations: on those, the embedders and the last product everything
depends, and they are small."""
PATCH = 2  # a token is a 2×2 patch of the latent image
_TRANSFORMER = "transformer/config.json"
HeadDim = Annotated[int, Field(ge=2, le=512)]


@with_config(SCHEMA)
@dataclass(frozen=True)
class FluxConfig:
    """The numbers of a checkpoint's `transformer/config.json` that shape the network."""

    in_channels: Width = 64
    out_channels: Width | None = None
    num_layers: Depth = 19
    num_single_layers: Depth = 38
    attention_head_dim: HeadDim = 128
    num_attention_heads: Annotated[int, Field(ge=1, le=512)] = 24
    joint_attention_dim: Width = 4096
    pooled_projection_dim: Width = 768
    guidance_embeds: bool = False
    axes_dims_rope: tuple[HeadDim, HeadDim, HeadDim] = (16, 56, 56)

    @property
    def dim(self) -> int:
        """Width of the residual stream."""
        return self.num_attention_heads * self.attention_head_dim

    @property
    def num_outputs(self) -> int:
        """Channels of a predicted token, which equal those of a latent token."""
        return self.out_channels or self.in_channels

    @property
    def token_operations(self) -> int:
        """Operations for each token of a step: two for each weight of the layers of its own stream.

        A block has twelve times the width squared; a double block has as many for text and for image, of
        which a token uses one. Modulation, a quarter of all weights, is computed per sequence, not per token.
        """
        return 2 * 12 * self.dim**2 * (self.num_layers + self.num_single_layers)

    @property
    def pair_operations(self) -> int:
        """Operations of attention per pair of tokens: four per channel."""
        return 4 * self.dim * (self.num_layers + self.num_single_layers)

    def step_bytes(self, workload: Workload, item_bytes: int) -> int:
        """Predict the bytes of residual streams, factors, q, k, v, and one block's feed-forward and sums."""
        return workload.step_tokens * self.dim * item_bytes * 32

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], origin: str = _TRANSFORMER) -> "FluxConfig":
        """Build a config from diffusers' own; names that do not shape the network are ignored.

        Raise `InvalidModel`, which names `origin`, for a value of another type or out of bounds.
        """
        config = parse_config(cls, values, origin)
        check_axes(config.axes_dims_rope, config.attention_head_dim, origin)
        return config

    @classmethod
    def read(cls, folder: ModelFolder) -> "FluxConfig":
        return cls.from_dict(*folder.config("transformer"))


def fills_in(folder: ModelFolder) -> bool:
    """Return whether a model reads a masked image beside the latents."""
    return folder.pipeline_class == "FluxFillPipeline"
