"""The shape of Wan's video autoencoder, which is Qwen-Image's as well. Importing this file loads no torch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, with_config

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.config import SCHEMA, Width, parse_config
from diffuserve.models.folders.folder import ModelFolder

TEMPORAL_SCALE = 4
"""Frames for each latent frame after the first, which stands for one frame alone."""
TAPS = 3
"""Frames that a convolution over time sees: one, and the two before it."""
MAX_STACKED = 1 << 24
"""Scalars that a convolution over time copies at once, or those of one frame: enough to fill a core."""
_IMAGE_CLASS = "AutoencoderKLQwenImage"
_Channel = Annotated[float, Field(ge=-1_000, le=1_000)]
_Stages = Field(min_length=1, max_length=8)


@with_config(SCHEMA)
@dataclass(frozen=True)
class VideoVaeConfig:
    """The values of `vae/config.json` that shape an `AutoencoderKLWan`, with diffusers' defaults.

    `is_residual` and `patch_size` are used by Wan 2.2: averages skip the convolutions of a stage, and the
    network reads patches of pixels. The config of an `AutoencoderKLQwenImage`, which is Wan 2.1's for single
    images, is read in these words; it states no scale.
    """

    base_dim: Width = 96
    decoder_base_dim: Width | None = None
    z_dim: Width = 16
    dim_mult: Annotated[tuple[Annotated[int, Field(ge=1, le=64)], ...], _Stages] = (1, 2, 4, 4)
    num_res_blocks: Annotated[int, Field(ge=1, le=32)] = 2
    attn_scales: tuple[float, ...] = ()
    temperal_downsample: tuple[bool, ...] = (False, True, True)  # diffusers' spelling
    latents_mean: tuple[_Channel, ...] = (
        *(-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508),
        *(0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921),
    )
    latents_std: tuple[Annotated[float, Field(gt=0, le=1_000)], ...] = (
        *(2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743),
        *(3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160),
    )
    is_residual: bool = False
    in_channels: Width = 3
    out_channels: Width = 3
    patch_size: Annotated[int, Field(ge=1, le=64)] | None = None
    scale_factor_temporal: Width | None = TEMPORAL_SCALE
    scale_factor_spatial: Width | None = 8

    @classmethod
    def read(cls, folder: ModelFolder) -> "VideoVaeConfig":
        """Read a folder's config. Raise `InvalidModel` for values out of bounds or not supported."""
        values, origin = folder.config("vae")
        is_of_images = values.get("_class_name") == _IMAGE_CLASS
        if is_of_images and (channels := values.get("input_channels", 3)) != 3:
            raise InvalidModel(f"{origin}: input_channels={channels!r} must be 3: red, green and blue")
        config = parse_config(cls, _in_words_of_wan(values) if is_of_images else values, origin)
        for problem in config._problems():
            raise InvalidModel(f"{origin}: {problem}")
        return config

    @property
    def scale(self) -> int:
        """Pixels of a frame, along one side, for each latent cell."""
        return self.patch * 2 ** (len(self.dim_mult) - 1)

    @property
    def patch(self) -> int:
        return self.patch_size or 1

    @property
    def encoder_widths(self) -> tuple[int, ...]:
        """Channels before the first stage of the encoder, and after each."""
        return tuple(self.base_dim * multiple for multiple in (1, *self.dim_mult))

    @property
    def decoder_widths(self) -> tuple[int, ...]:
        """Channels before the first stage of the decoder, and after each."""
        multiples = self.dim_mult[::-1]
        return tuple(
            (self.decoder_base_dim or self.base_dim) * multiple for multiple in (multiples[0], *multiples)
        )

    @property
    def temporal_upsample(self) -> tuple[bool, ...]:
        """Flags of the stages of the decoder but the last: those that double the frames."""
        return self.temperal_downsample[::-1]

    def latent_frames(self, num_frames: int) -> int:
        """Return the latent frames of a clip of `num_frames`, a multiple of 4 and one more."""
        return (num_frames - 1) // TEMPORAL_SCALE + 1

    def _problems(self) -> Iterator[str]:
        """Yield unsupported or inconsistent values."""
        if self.attn_scales:
            yield f"attn_scales={list(self.attn_scales)}: attention outside the middle block is not supported"
        if len(self.temperal_downsample) != len(self.dim_mult) - 1:
            yield (
                f"temperal_downsample={list(self.temperal_downsample)} must have one value fewer than "
                f"dim_mult={list(self.dim_mult)}"
            )
        yield from self._scale_problems()
        for name in ("latents_mean", "latents_std"):
            if (count := len(getattr(self, name))) != self.z_dim:
                yield f"{name} has {count} values; z_dim={self.z_dim} channels need one each"
        if self.is_residual:
            yield from self._shortcut_problems()

    def _scale_problems(self) -> Iterator[str]:
        temporal = 2 ** sum(self.temperal_downsample)
        is_supported = temporal == self.scale_factor_temporal == TEMPORAL_SCALE
        if not is_supported and self.scale_factor_temporal is not None:
            yield (
                f"scale_factor_temporal={self.scale_factor_temporal}, and temperal_downsample makes it "
                f"{temporal}: only {TEMPORAL_SCALE} is supported"
            )
        if self.scale_factor_spatial not in (self.scale, None):
            yield (
                f"scale_factor_spatial={self.scale_factor_spatial}, but dim_mult and patch_size make it "
                f"{self.scale}"
            )
        for name in ("in_channels", "out_channels"):
            if (channels := getattr(self, name)) != 3 * self.patch**2:
                yield f"{name}={channels}, but patch_size={self.patch_size} makes it {3 * self.patch**2}"

    def _shortcut_problems(self) -> Iterator[str]:
        """Yield the widths that cannot be carried past a stage as averages or copies."""
        *down, last = zip(self.encoder_widths, self.encoder_widths[1:], strict=False)
        folds = [4 * (1 + is_temporal) for is_temporal in self.temperal_downsample]
        for (before, after), fold in zip([*down, last], [*folds, 1], strict=True):
            if before * fold % after:
                yield f"is_residual: a stage of the encoder cannot average {before} channels to {after}"
        up = zip(self.decoder_widths, self.decoder_widths[1:-1], strict=False)
        for (before, after), fold in zip(up, folds[::-1], strict=True):
            if after * fold % before:
                yield f"is_residual: a stage of the decoder cannot copy {before} channels to {after}"


def _in_words_of_wan(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of an `AutoencoderKLQwenImage` by the names of an `AutoencoderKLWan`'s values."""
    return {**values, "scale_factor_temporal": None, "scale_factor_spatial": None}
