"""The shape of a ControlNet of FLUX.1. Importing this file loads no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, with_config

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.config import SCHEMA, Width, parse_config
from diffuserve.domain.requests.control_use import MAX_CONTROL_MODE
from diffuserve.models.families.flux.config import PATCH, FluxConfig
from diffuserve.models.folders.folder import ControlNetFolder

_CLASS = "FluxControlNetModel"
_SHARED = ("in_channels", "dim", "joint_attention_dim", "pooled_projection_dim", "axes_dims_rope")
"""What a ControlNet must have in common with its transformer, to whose tokens it adds."""


@with_config(SCHEMA)
@dataclass(frozen=True)
class _Own:
    num_mode: Annotated[int, Field(ge=1, le=MAX_CONTROL_MODE + 1)] | None = None
    conditioning_embedding_channels: Width | None = None
    patch_size: Width = 1


@dataclass(frozen=True)
class FluxControlNetConfig:
    """The shape of a ControlNet's transformer, and how it reads control images.

    It knows `num_modes` kinds of images; 0 for a single one. With `pixel_channels` it reads pixels, by
    convolutions that end in so many channels, and its changes repeat over all blocks; else it reads latents.
    """

    flux: FluxConfig
    num_modes: int
    pixel_channels: int

    @classmethod
    def read(cls, folder: ControlNetFolder, transformer: FluxConfig) -> "FluxControlNetConfig":
        """Read a folder's config. Raise `InvalidModel` unless it is a ControlNet for this transformer."""
        values, origin = folder.config()
        if values.get("_class_name") != _CLASS:
            raise InvalidModel(f"{origin}: {values.get('_class_name')} is not supported, {_CLASS} is")
        own = parse_config(_Own, values, origin)
        config = cls(
            FluxConfig.from_dict(values, origin), own.num_mode or 0, own.conditioning_embedding_channels or 0
        )
        config._check(origin, transformer, own.patch_size)
        return config

    def _check(self, origin: str, transformer: FluxConfig, patch: int) -> None:
        for name in _SHARED:
            found, wanted = getattr(self.flux, name), getattr(transformer, name)
            if found != wanted:
                raise InvalidModel(
                    f"{origin}: {name}={found} must be {wanted}, as the transformer's; it belongs to another "
                    "kind of models"
                )
        cells = (patch, PATCH**2 * self.pixel_channels)
        if self.pixel_channels and cells != (PATCH, self.flux.in_channels):
            raise InvalidModel(
                f"{origin}: patch_size={patch} and conditioning_embedding_channels={self.pixel_channels} "
                f"must be {PATCH} and a quarter of in_channels={self.flux.in_channels}"
            )


def control_work(nets: Sequence[FluxControlNetConfig], transformer: FluxConfig) -> float:
    """Return the operations of the largest of some ControlNets for a token, beside the transformer's."""
    largest = max((net.flux.token_operations for net in nets), default=0)
    return largest / max(transformer.token_operations, 1)
