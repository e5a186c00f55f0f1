"""The shape of a ControlNet of Stable Diffusion. Importing this file loads no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, with_config

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.config import SCHEMA, Width, parse_config
from diffuserve.models.families.stable_diffusion.config import UNetConfig
from diffuserve.models.folders.folder import ControlNetFolder

CONTROL_WORK = 0.4  # operations of a ControlNet of SDXL beside its UNet's; of Stable Diffusion 1 as many
_CLASS = "ControlNetModel"
_MAX_EMBEDDING_LEVELS = 8
# Options of the reference that few checkpoints set: their only supported values.
_FIXED: Mapping[str, Any] = {
    "conditioning_channels": 3,
    "controlnet_conditioning_channel_order": "rgb",
    "encoder_hid_dim": None,
    "global_pool_conditions": False,
}
_SHARED = (
    "cross_attention_dim",
    "block_out_channels",
    "layers",
    "addition_embed_type",
    "addition_time_embed_dim",
    "projection_class_embeddings_input_dim",
)
"""What a ControlNet must have in common with its UNet, to whose features it adds."""


@with_config(SCHEMA)
@dataclass(frozen=True)
class _Embedding:
    conditioning_embedding_out_channels: Annotated[
        tuple[Width, ...], Field(min_length=1, max_length=_MAX_EMBEDDING_LEVELS)
    ] = (16, 32, 96, 256)


@dataclass(frozen=True)
class ControlNetConfig:
    """The shape of the copied half of a UNet, and the channels of the levels that embed control images."""

    unet: UNetConfig
    embedding: tuple[int, ...]

    @classmethod
    def read(cls, folder: ControlNetFolder, unet: UNetConfig, scale: int) -> "ControlNetConfig":
        """Read a folder's config. Raise `InvalidModel` unless it is a ControlNet for this UNet.

        `scale` is the number of pixels a side of a latent cell.
        """
        values, origin = folder.config()
        if values.get("_class_name") != _CLASS:
            raise InvalidModel(f"{origin}: {values.get('_class_name')} is not supported, {_CLASS} is")
        for option, supported in _FIXED.items():
            if values.get(option, supported) != supported:
                raise InvalidModel(f"{origin}: {option}={values[option]!r} is not supported")
        embedding = parse_config(_Embedding, values, origin).conditioning_embedding_out_channels
        config = cls(_half(values, origin), embedding)
        config._check(origin, unet, scale)
        return config

    def _check(self, origin: str, unet: UNetConfig, scale: int) -> None:
        for name in _SHARED:
            own, wanted = getattr(self.unet, name), getattr(unet, name)
            if own != wanted:
                raise InvalidModel(
                    f"{origin}: {name}={own} must be {wanted}, as the UNet's; it belongs to another kind of "
                    "models"
                )
        if self.unet.in_channels != unet.out_channels:
            raise InvalidModel(f"{origin}: in_channels={self.unet.in_channels} must be {unet.out_channels}")
        if 2 ** (len(self.embedding) - 1) != scale:
            raise InvalidModel(
                f"{origin}: conditioning_embedding_out_channels={self.embedding} must have "
                f"{scale.bit_length()} levels for a VAE of {scale} pixels a cell"
            )


def _half(values: Mapping[str, Any], origin: str) -> UNetConfig:
    """Return the UNet whose way down is the ControlNet's."""
    down = values.get("down_block_types", UNetConfig.down_block_types)
    if not isinstance(down, list | tuple):
        raise InvalidModel(f"{origin}: down_block_types must be a list")
    up = [str(kind).replace("Down", "Up") for kind in reversed(down)]
    channels = values.get("in_channels", UNetConfig.in_channels)
    mirrored = {"up_block_types": up, "out_channels": channels, "time_cond_proj_dim": None}
    return UNetConfig.from_dict({**values, **mirrored}, origin)
