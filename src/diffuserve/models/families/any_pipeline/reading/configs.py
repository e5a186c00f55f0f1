"""Configs of a folder's components, as far as the sizes of requests follow from them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, with_config

from diffuserve.domain.models.config import SCHEMA, Config, parse_config
from diffuserve.models.folders.folder import ModelFolder

AUTOENCODERS = ("vae", "movq", "vqvae", "vqgan")
DENOISERS = ("transformer", "unet", "prior", "decoder")

_Scale = Annotated[int, Field(ge=1, le=256)]
_Side = Annotated[int, Field(ge=1, le=16_384)]
_Patch = Annotated[int, Field(ge=1, le=64)]
_Channels = Annotated[tuple[Annotated[int, Field(ge=1, le=65_536)], ...], Field(min_length=1, max_length=12)]
_Halvings = Annotated[tuple[bool, ...], Field(max_length=12)]
_Patches = _Patch | Annotated[tuple[_Patch, ...], Field(min_length=1, max_length=4)]
_DEFAULT_SCALE = 8
_DEFAULT_STRIDE = 4


@with_config(SCHEMA)
@dataclass(frozen=True)
class AutoencoderSizes:
    """What an autoencoder's config says of how many pixels and frames become one."""

    spatial_compression_ratio: _Scale | None = None
    scale_factor_spatial: _Scale | None = None
    temporal_compression_ratio: _Scale | None = None
    scale_factor_temporal: _Scale | None = None
    block_out_channels: _Channels | None = None
    encoder_block_out_channels: _Channels | None = None
    temperal_downsample: _Halvings | None = None
    spatio_temporal_scaling: _Halvings | None = None
    temporal_expansions: Annotated[tuple[_Scale, ...], Field(max_length=12)] | None = None
    patch_size: _Patches | None = None
    patch_size_t: _Patch | None = None

    @property
    def scale(self) -> int:
        """Pixels of a latent cell's side."""
        if (told := self.spatial_compression_ratio or self.scale_factor_spatial) is not None:
            return told
        if self.spatio_temporal_scaling is not None:
            return (_side(self.patch_size) or 1) * 2 ** sum(self.spatio_temporal_scaling)
        if self.temperal_downsample is not None:
            return (_side(self.patch_size) or 1) * 2 ** len(self.temperal_downsample)
        channels = self.encoder_block_out_channels or self.block_out_channels
        return _DEFAULT_SCALE if channels is None else 2 ** (len(channels) - 1)

    @property
    def stride(self) -> int:
        """Frames of a latent frame."""
        if (told := self.temporal_compression_ratio or self.scale_factor_temporal) is not None:
            return told
        if self.spatio_temporal_scaling is not None:
            return (self.patch_size_t or 1) * 2 ** sum(self.spatio_temporal_scaling)
        if self.temperal_downsample is not None:
            return 2 ** sum(self.temperal_downsample)
        if self.temporal_expansions is not None:
            return max(1, _product(self.temporal_expansions))
        return _DEFAULT_STRIDE


@with_config(SCHEMA)
@dataclass(frozen=True)
class DenoiserSizes:
    """What a denoiser's config says of its default sizes, its patches and its guidance."""

    sample_size: _Side | tuple[_Side, _Side] | None = None
    sample_height: _Side | None = None
    sample_width: _Side | None = None
    sample_frames: _Side | None = None
    patch_size: _Patches | None = None
    time_cond_proj_dim: _Side | None = None

    @property
    def patch(self) -> int | None:
        """Latent cells of a token's side; `None` if it says nothing."""
        return _side(self.patch_size)

    @property
    def sample(self) -> tuple[int, int] | None:
        """Width and height in latent cells of what it was trained on; `None` if it says nothing."""
        if self.sample_width is not None and self.sample_height is not None:
            return self.sample_width, self.sample_height
        if isinstance(self.sample_size, tuple):
            return self.sample_size[1], self.sample_size[0]
        return None if self.sample_size in (None, 1) else (self.sample_size, self.sample_size)


@with_config(SCHEMA)
@dataclass(frozen=True)
class TokenizerSizes:
    """What a tokenizer's config says of the longest text; libraries write a huge number for none."""

    model_max_length: Annotated[float, Field(ge=1)] | None = None


def read_sizes(folder: ModelFolder, names: Iterable[str], schema: type[Config]) -> Config:
    """Return the sizes of the first of a folder's components that has a config. Raise `InvalidModel`."""
    for name in names:
        if (folder.path / name / "config.json").is_file():
            return parse_config(schema, *folder.config(name))
    return parse_config(schema, {}, "")


def _side(patch: int | tuple[int, ...] | None) -> int | None:
    return patch[-1] if isinstance(patch, tuple) else patch


def _product(values: Iterable[int]) -> int:
    result = 1
    for value in values:
        result *= value
    return result
