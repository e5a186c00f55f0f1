"""The shape of an image autoencoder. Importing this file loads no torch."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, with_config

from diffuserve.domain.models.config import SCHEMA, Width, parse_config
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.strips.strip_sizes import needs_strips, strip_bytes

_LIVE_FEATURES = 4
_Widths = Annotated[tuple[Annotated[int, Field(ge=1, le=8_192)], ...], Field(min_length=1, max_length=8)]


@with_config(SCHEMA)
@dataclass(frozen=True)
class AutoencoderConfig:
    """The values of `vae/config.json` that shape the autoencoder and scale latents, with diffusers' defaults.

    `force_upcast`: the network overflows in float16, so pipelines that say so run it in float32.
    """

    block_out_channels: _Widths
    latent_channels: Width = 4
    in_channels: Literal[3] = 3
    out_channels: Width = 3
    layers_per_block: Annotated[int, Field(ge=1, le=32)] = 1
    norm_num_groups: Width = 32
    scaling_factor: Annotated[float, Field(gt=0, le=1_000)] = 0.18215
    shift_factor: Annotated[float, Field(ge=-1_000, le=1_000)] | None = None
    act_fn: Literal["silu"] = "silu"
    down_block_types: tuple[Literal["DownEncoderBlock2D"], ...] = ("DownEncoderBlock2D",)
    up_block_types: tuple[Literal["UpDecoderBlock2D"], ...] = ("UpDecoderBlock2D",)
    mid_block_add_attention: bool = True
    use_quant_conv: bool = True
    use_post_quant_conv: bool = True
    force_upcast: bool = True
    latents_mean: None = None  # per channel; no supported checkpoint has it
    latents_std: None = None

    @property
    def decoder_widths(self) -> tuple[int, ...]:
        """Channels of the decoder's stages, from the last to the first."""
        return self.block_out_channels

    @property
    def scale(self) -> int:
        """Pixels of an image, along one side, for each latent cell."""
        return int(2 ** (len(self.block_out_channels) - 1))

    def decode_bytes(self, num_pixels: int, item_bytes: int) -> int:
        """Predict the peak bytes of features of decoding one image, whole or in strips.

        The widest features are those that enter a residual block. Whole, they are kept for its shortcut
        beside their norm, its activation, and the copy in another layout that CUDA's norm makes.
        """
        entering = (*self.decoder_widths[1:], self.decoder_widths[-1])
        widest = int(num_pixels * max(width / 4**level for level, width in enumerate(entering)))
        if not needs_strips(num_pixels):
            return _LIVE_FEATURES * widest * item_bytes
        return self._map_bytes(num_pixels, item_bytes) + strip_bytes(widest, item_bytes)

    def _map_bytes(self, num_pixels: int, item_bytes: int) -> int:
        """Return the bytes of the maps that are kept while one image is decoded in strips.

        A stage keeps its input, what its first block has convolved, and what that is added to.
        """
        widths = self.decoder_widths
        stages = enumerate(zip(widths, (*widths[1:], widths[-1]), strict=True))
        widest = max((2 * width + before / 4) / 4**level for level, (width, before) in stages)
        return int(widest * num_pixels * item_bytes)

    @classmethod
    def read(cls, folder: ModelFolder) -> "AutoencoderConfig":
        """Read a folder's config. Raise `InvalidModel` for values out of bounds or other blocks."""
        return parse_config(cls, *folder.config("vae"))


@with_config(SCHEMA)
@dataclass(frozen=True)
class PatchedAutoencoderConfig(AutoencoderConfig):
    """The values of an `AutoencoderKLFlux2`: models have patches of its latents, which are normalized.

    The decoder may have widths of its own.
    """

    block_out_channels: _Widths = (128, 256, 512, 512)
    decoder_block_out_channels: _Widths | None = None
    latent_channels: Width = 32
    layers_per_block: Annotated[int, Field(ge=1, le=32)] = 2
    batch_norm_eps: Annotated[float, Field(gt=0, le=1)] = 1e-4
    patch_size: tuple[Literal[2], Literal[2]] = (2, 2)

    @property
    def decoder_widths(self) -> tuple[int, ...]:
        return self.decoder_block_out_channels or self.block_out_channels

    @classmethod
    def read(cls, folder: ModelFolder) -> "PatchedAutoencoderConfig":
        return parse_config(cls, *folder.config("vae"))
