"""The shape of a Qwen-Image checkpoint. Importing this file loads no torch."""

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
    r"|(img|txt)_mlp\.net\.(0\.proj|2))"
)
"""All products of the blocks, but the modulations: on those, the embedders and the last product everything
depends."""
PATCH = 2  # a token is a 2×2 patch of the latent image
_TRANSFORMER = "transformer/config.json"
_HeadDim = Annotated[int, Field(ge=2, le=512)]


@with_config(SCHEMA)
@dataclass(frozen=True)
class QwenImageConfig:
    """The numbers of a checkpoint's `transformer/config.json` that shape the network.

    `zero_cond_t`: tokens of references are modulated as at timestep 0, since they hold no noise. Options of
    other models of this architecture, such as layered images, must be off.
    """

    in_channels: Width = 64
    out_channels: Width = 16
    patch_size: Literal[2] = 2
    num_layers: Depth = 60
    attention_head_dim: _HeadDim = 128
    num_attention_heads: Annotated[int, Field(ge=1, le=512)] = 24
    joint_attention_dim: Width = 3584
    axes_dims_rope: tuple[_HeadDim, _HeadDim, _HeadDim] = (16, 56, 56)
    zero_cond_t: bool = False
    guidance_embeds: Literal[False] = False
    use_additional_t_cond: Literal[False] = False
    use_layer3d_rope: Literal[False] = False

    @property
    def dim(self) -> int:
        """Width of the residual stream."""
        return self.num_attention_heads * self.attention_head_dim

    @property
    def token_operations(self) -> int:
        """Operations for each token of a step: two for each weight of the layers of its own stream."""
        return 2 * 12 * self.dim**2 * self.num_layers

    @property
    def pair_operations(self) -> int:
        """Operations of attention per pair of tokens: four per channel."""
        return 4 * self.dim * self.num_layers

    def step_bytes(self, workload: Workload, item_bytes: int) -> int:
        """Predict the bytes of residual streams, factors, q, k, v, and one block's feed-forward and sums."""
        return workload.step_tokens * self.dim * item_bytes * 32

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], origin: str = _TRANSFORMER) -> "QwenImageConfig":
        """Build a config from diffusers' own; names that do not shape the network are ignored.

        Raise `InvalidModel`, which names `origin`, for a value of another type or out of bounds.
        """
        config = parse_config(cls, values, origin)
        check_axes(config.axes_dims_rope, config.attention_head_dim, origin)
        return config

    @classmethod
    def read(cls, folder: ModelFolder) -> "QwenImageConfig":
        return cls.from_dict(*folder.config("transformer"))
