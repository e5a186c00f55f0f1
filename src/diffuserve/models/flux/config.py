"""The shape of a FLUX.1 checkpoint's transformer. Importing this file loads no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FluxConfig:
    """The numbers of a checkpoint's `transformer/config.json` that shape the network."""

    in_channels: int = 64
    num_layers: int = 19
    num_single_layers: int = 38
    attention_head_dim: int = 128
    num_attention_heads: int = 24
    joint_attention_dim: int = 4096
    pooled_projection_dim: int = 768
    guidance_embeds: bool = False
    axes_dims_rope: tuple[int, ...] = (16, 56, 56)

    @property
    def dim(self) -> int:
        """Width of the residual stream."""
        return self.num_attention_heads * self.attention_head_dim

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "FluxConfig":
        """Build a config from diffusers' own; names that do not shape the network are ignored."""
        known = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
        return cls(**{**known, "axes_dims_rope": tuple(values.get("axes_dims_rope", cls.axes_dims_rope))})
