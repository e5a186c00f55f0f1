"""The shape of a Z-Image checkpoint. Importing this file loads no torch."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, with_config

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.config import SCHEMA, Depth, Width, parse_config
from diffuserve.domain.models.cost import Workload
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.quantized.quantized_layers import QuantizedLayers

TRANSFORMER_LAYERS = QuantizedLayers(
    r"(noise_refiner|layers)\.\d+\.(attention\.to_(qkv|q|k|v|out\.0)|feed_forward\.(linear_in|linear_out|w[123]))"
)
"""All products of the blocks that each step runs, but the modulations. The blocks that refine a prompt run
once for it, and everything depends on their result."""
PATCH = 2  # a token is a 2×2 patch of the latent image
PAD_MULTIPLE = 32  # tokens of a prompt and of an image are padded to multiples of this
READ_STATES = (-2,)  # of transformers' `hidden_states` of the text encoder
MODULATION_WIDTH = 256  # of the timestep's vector, at most
TIMESTEP_CHANNELS, TIMESTEP_HIDDEN = 256, 1024

Axis = Annotated[int, Field(ge=2, le=512)]
Positions = Annotated[int, Field(ge=1, le=65_536)]


@with_config(SCHEMA)
@dataclass(frozen=True)
class ZImageConfig:
    """The numbers of a checkpoint's `transformer/config.json` that shape the network."""

    all_patch_size: tuple[Literal[2]] = (2,)
    all_f_patch_size: tuple[Literal[1]] = (1,)
    in_channels: Width = 16
    dim: Width = 3840
    n_layers: Depth = 30
    n_refiner_layers: Depth = 2
    n_heads: Annotated[int, Field(ge=1, le=512)] = 30
    norm_eps: Annotated[float, Field(ge=0, le=1)] = 1e-5
    qk_norm: Literal[True] = True
    cap_feat_dim: Width = 2560
    siglip_feat_dim: None = None  # of the Omni variant, whose sequences are others
    rope_theta: Annotated[float, Field(ge=1, le=1e9)] = 256.0
    t_scale: Annotated[float, Field(gt=0, le=1e6)] = 1000.0
    axes_dims: tuple[Axis, Axis, Axis] = (32, 48, 48)
    axes_lens: tuple[Positions, Positions, Positions] = (1024, 512, 512)

    @property
    def head_dim(self) -> int:
        return self.dim // self.n_heads

    @property
    def hidden_dim(self) -> int:
        """Width of the feed-forward network inside; the reference rounds it so."""
        return int(self.dim / 3 * 8)

    @property
    def num_modulation(self) -> int:
        """Numbers of the timestep's vector."""
        return min(self.dim, MODULATION_WIDTH)

    @property
    def longest_prompt(self) -> int:
        """The most tokens of a prompt; the image stands behind its padding on the first axis."""
        return (self.axes_lens[0] - 2) // PAD_MULTIPLE * PAD_MULTIPLE

    @property
    def longest_side(self) -> int:
        """The most tokens of an image's side."""
        return min(self.axes_lens[1:])

    @property
    def token_operations(self) -> int:
        """Operations for each token of a step: two for each weight of the blocks that it passes.

        Tokens of prompts do not pass the first blocks, which refine images: the few operations that are
        counted too much for them do not matter.
        """
        block = 4 * self.dim**2 + 3 * self.dim * self.hidden_dim
        return 2 * block * (self.n_layers + self.n_refiner_layers)

    @property
    def pair_operations(self) -> int:
        """Operations of attention per pair of tokens: four per channel."""
        return 4 * self.dim * (self.n_layers + self.n_refiner_layers)

    def step_bytes(self, workload: Workload, item_bytes: int) -> int:
        """Predict the bytes of the residual stream, factors, q, k, v, and a feed-forward's two wide rows."""
        return workload.step_tokens * item_bytes * (12 * self.dim + 3 * self.hidden_dim)

    @classmethod
    def read(cls, folder: ModelFolder) -> "ZImageConfig":
        """Read a folder's config. Raise `InvalidModel` for values out of bounds or that do not fit."""
        values, origin = folder.config("transformer")
        config = parse_config(cls, values, origin)
        axes = config.axes_dims
        if config.n_heads * sum(axes) != config.dim or any(axis % 2 for axis in axes):
            raise InvalidModel(
                f"{origin}: axes_dims={list(axes)} must be even numbers whose sum times n_heads="
                f"{config.n_heads} is dim={config.dim}"
            )
        if config.longest_prompt < PAD_MULTIPLE:
            raise InvalidModel(
                f"{origin}: axes_lens={list(config.axes_lens)} leave no place for a prompt; the first must "
                f"be at least {PAD_MULTIPLE + 2}"
            )
        return config
