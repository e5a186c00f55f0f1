"""The shape of a Stable Diffusion checkpoint. Importing this file loads no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, with_config

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.config import SCHEMA, Depth, Width, parse_config
from diffuserve.domain.models.cost import Workload
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.quantized.quantized_layers import QuantizedLayers

Value = TypeVar("Value")
PerLevel = tuple[Value, ...]
DownBlock = Literal["DownBlock2D", "CrossAttnDownBlock2D"]
UpBlock = Literal["UpBlock2D", "CrossAttnUpBlock2D"]

SIZES = 6  # numbers of an image's original size, crop and target size, which SDXL reads; refiners 5
UNET_LAYERS = QuantizedLayers(
    r".+\.transformer_blocks\.\d+\.(attn[12]\.to_(q|k|v|out\.0)|ff\.net\.(0\.proj|2))"
)
"""All products of the transformer blocks. Convolutions stay as they are: they have no kernel here whose
activations have a scale for each image alone."""

# Values per channel that are held at once: in a residual block that joins features and a skip, and in a
# transformer's gated feed-forward.
_RESIDUAL_VALUES, _TRANSFORMER_VALUES = 3, 19

# Options of the reference that no Stable Diffusion checkpoint sets: their only supported values.
_FIXED: Mapping[str, Any] = {
    "act_fn": "silu",
    "attention_type": "default",
    "center_input_sample": False,
    "class_embed_type": None,
    "conv_in_kernel": 3,
    "conv_out_kernel": 3,
    "cross_attention_norm": None,
    "downsample_padding": 1,
    "dual_cross_attention": False,
    "encoder_hid_dim_type": None,
    "flip_sin_to_cos": True,
    "freq_shift": 0,
    "mid_block_only_cross_attention": None,
    "mid_block_scale_factor": 1,
    "mid_block_type": "UNetMidBlock2DCrossAttn",
    "num_attention_heads": None,
    "num_class_embeds": None,
    "only_cross_attention": False,
    "resnet_out_scale_factor": 1.0,
    "resnet_skip_time_act": False,
    "resnet_time_scale_shift": "default",
    "reverse_transformer_layers_per_block": None,
    "time_embedding_act_fn": None,
    "time_embedding_type": "positional",
    "timestep_post_act": None,
}


@with_config(SCHEMA)
@dataclass(frozen=True)
class UNetConfig:
    """The values of `unet/config.json` that shape the network, with diffusers' names and defaults.

    `attention_head_dim` counts heads, as in the reference. Values per level may also be given once for all.
    """

    sample_size: Width | tuple[Width, Width] | None = None
    in_channels: Width = 4
    out_channels: Width = 4
    down_block_types: PerLevel[DownBlock] = (*("CrossAttnDownBlock2D",) * 3, "DownBlock2D")
    up_block_types: PerLevel[UpBlock] = ("UpBlock2D", *("CrossAttnUpBlock2D",) * 3)
    block_out_channels: Annotated[PerLevel[Width], Field(min_length=1, max_length=8)] = (320, 640, 1280, 1280)
    layers_per_block: Depth | PerLevel[Depth] = 2
    transformer_layers_per_block: Depth | PerLevel[Depth] = 1
    attention_head_dim: Width | PerLevel[Width] = 8
    cross_attention_dim: Width = 1280
    norm_num_groups: Width = 32
    norm_eps: Annotated[float, Field(ge=0, le=1)] = 1e-5
    use_linear_projection: bool = False
    addition_embed_type: Literal["text_time"] | None = None
    addition_time_embed_dim: Width | None = None
    projection_class_embeddings_input_dim: Width | None = None
    time_cond_proj_dim: Width | None = None
    time_embedding_dim: Width | None = None

    @classmethod
    def read(cls, folder: ModelFolder) -> "UNetConfig":
        """Read a folder's config. Raise `InvalidModel` for another network or values out of bounds."""
        return cls.from_dict(*folder.config("unet"))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], origin: str = "unet/config.json") -> "UNetConfig":
        """Build a config from diffusers' own. Raise `InvalidModel`, which names `origin`."""
        for option, supported in _FIXED.items():
            if values.get(option, supported) != supported:
                raise InvalidModel(f"{origin}: {option}={values[option]!r} is not supported")
        config = parse_config(cls, values, origin)
        config._check_levels(origin)
        return config

    @property
    def num_levels(self) -> int:
        return len(self.block_out_channels)

    @property
    def time_dim(self) -> int:
        """Width of the embedding of timesteps."""
        return self.time_embedding_dim or 4 * self.block_out_channels[0]

    @property
    def layers(self) -> PerLevel[int]:
        """Return the residual blocks of each level."""
        return self._per_level(self.layers_per_block)

    @property
    def transformer_layers(self) -> PerLevel[int]:
        """Return the transformer blocks of each attention, by level."""
        return self._per_level(self.transformer_layers_per_block)

    @property
    def heads(self) -> PerLevel[int]:
        """Return the attention heads of each level."""
        return self._per_level(self.attention_head_dim)

    @property
    def is_xl(self) -> bool:
        """True for SDXL's way of conditioning: two text encoders, and a pooled prompt beside sizes."""
        return self.addition_embed_type is not None

    @property
    def reads_mask(self) -> bool:
        """True for inpainting models: a mask and the masked image's latents are further channels."""
        return self.in_channels == 2 * self.out_channels + 1

    def num_sizes(self, pooled_width: int) -> int:
        """Return how many numbers of an image's sizes the model reads, beside a pooled prompt."""
        if self.addition_time_embed_dim is None or self.projection_class_embeddings_input_dim is None:
            return 0
        return (self.projection_class_embeddings_input_dim - pooled_width) // self.addition_time_embed_dim

    @property
    def pair_operations(self) -> float:
        """Return the operations of self-attention per pair of latent cells: four per channel."""
        last = self.num_levels - 1
        up = [kind == "CrossAttnUpBlock2D" for kind in reversed(self.up_block_types)]
        down = [kind == "CrossAttnDownBlock2D" for kind in self.down_block_types]
        attentions = [
            self.layers[level] * down[level] + (self.layers[level] + 1) * up[level] + (level == last)
            for level in range(self.num_levels)
        ]
        return sum(
            4 * count * depth * width / 16**level
            for level, (count, depth, width) in enumerate(
                zip(attentions, self.transformer_layers, self.block_out_channels, strict=True)
            )
        )

    def step_bytes(self, workload: Workload, item_bytes: int) -> int:
        """Predict the bytes of the skips of all levels, and of the widest block's values between them."""
        widths, last = self.block_out_channels, self.num_levels - 1
        skips, widest = float(widths[0]), 0.0
        for level, (width, layers) in enumerate(zip(widths, self.layers, strict=True)):
            cells = 0.25**level  # per latent cell
            skips += cells * width * (layers + (0.25 if level < last else 0))
            joined = width + max(widths[min(level + 1, last)], width)
            widest = max(widest, cells * (_RESIDUAL_VALUES * joined + 2 * width))
            if self._has_attention(level):
                widest = max(widest, cells * _TRANSFORMER_VALUES * width)
        return int(workload.step_tokens * (skips + widest) * item_bytes)

    def _has_attention(self, level: int) -> bool:
        return self.down_block_types[level] == "CrossAttnDownBlock2D"

    def _per_level(self, value: int | PerLevel[int]) -> PerLevel[int]:
        return (value,) * self.num_levels if isinstance(value, int) else value

    def _check_levels(self, origin: str) -> None:
        counts = {
            "down_block_types": len(self.down_block_types),
            "up_block_types": len(self.up_block_types),
            "layers_per_block": len(self.layers),
            "transformer_layers_per_block": len(self.transformer_layers),
            "attention_head_dim": len(self.heads),
        }
        for name, count in counts.items():
            if count != self.num_levels:
                raise InvalidModel(
                    f"{origin}: {name} has {count} levels, block_out_channels {self.num_levels}"
                )
        for width, heads in zip(self.block_out_channels, self.heads, strict=True):
            if width % heads or width % self.norm_num_groups:
                raise InvalidModel(
                    f"{origin}: block_out_channels={width} must be a multiple of attention_head_dim={heads} "
                    f"and of norm_num_groups={self.norm_num_groups}"
                )
        for name in ("addition_time_embed_dim", "projection_class_embeddings_input_dim"):
            if self.is_xl != (getattr(self, name) is not None):
                raise InvalidModel(f"{origin}: addition_embed_type='text_time' needs {name}, and only it")


def text_encoders(folder: ModelFolder, config: UNetConfig) -> tuple[str, ...]:
    """Return the components that read prompts, in the order in which their states stand side by side."""
    if not config.is_xl:
        return ("text_encoder",)
    has_first = folder.index.get("text_encoder", [""]) not in (None, [None, None])
    return ("text_encoder", "text_encoder_2") if has_first else ("text_encoder_2",)
