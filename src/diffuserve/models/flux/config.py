"""The shapes of a FLUX.1 checkpoint's transformer and VAE. Importing this file loads no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, with_config

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.model_config import SCHEMA, Depth, Width, parse_config
from diffuserve.models.folder import ModelFolder

_TRANSFORMER, _VAE = "transformer/config.json", "vae/config.json"
HeadDim = Annotated[int, Field(ge=2, le=512)]


@with_config(SCHEMA)
@dataclass(frozen=True)
class FluxConfig:
    """The numbers of a checkpoint's `transformer/config.json` that shape the network."""

    in_channels: Width = 64
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

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], origin: str = _TRANSFORMER) -> "FluxConfig":
        """Build a config from diffusers' own; names that do not shape the network are ignored.

        Raise `InvalidModel`, which names `origin`, for a value of another type or out of bounds.
        """
        config = parse_config(cls, values, origin)
        axes = config.axes_dims_rope
        if sum(axes) != config.attention_head_dim or any(axis % 2 for axis in axes):
            raise InvalidModel(
                f"{origin}: axes_dims_rope={list(axes)} must be even numbers that sum to "
                f"attention_head_dim={config.attention_head_dim}"
            )
        return config

    @classmethod
    def read(cls, folder: ModelFolder) -> "FluxConfig":
        return cls.from_dict(folder.json(_TRANSFORMER), f"{folder.path}/{_TRANSFORMER}")


@with_config(SCHEMA)
@dataclass(frozen=True)
class FluxVaeConfig:
    """The numbers of a checkpoint's `vae/config.json` that say how latents and pixels relate."""

    block_out_channels: Annotated[
        tuple[Annotated[int, Field(ge=1, le=8_192)], ...], Field(min_length=1, max_length=8)
    ]
    latent_channels: Width = 4
    layers_per_block: Annotated[int, Field(ge=1, le=32)] = 1
    scaling_factor: Annotated[float, Field(gt=0, le=1_000)] = 0.18215
    shift_factor: Annotated[float, Field(ge=-1_000, le=1_000)] | None = None

    @property
    def scale(self) -> int:
        """Pixels of an image, along one side, for each latent cell."""
        return 2 ** (len(self.block_out_channels) - 1)

    @classmethod
    def read(cls, folder: ModelFolder) -> "FluxVaeConfig":
        return parse_config(cls, folder.json(_VAE), f"{folder.path}/{_VAE}")
