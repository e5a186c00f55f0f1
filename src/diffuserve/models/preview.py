"""Previews: latent channels to RGB by one linear map, a rough image without the decoder."""

from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float, UInt8
from pydantic import Field, with_config
from torch import Tensor

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.config import SCHEMA, parse_config
from diffuserve.models.folders.folder import SETTINGS_FILE, ModelFolder

_Color = tuple[Annotated[float, Field(ge=-1_000, le=1_000)], ...]


@with_config(SCHEMA)
@dataclass(frozen=True)
class _PreviewSettings:
    factors: tuple[Annotated[_Color, Field(min_length=3, max_length=3)], ...]
    bias: Annotated[_Color, Field(min_length=3, max_length=3)]


class PreviewMap:
    """A linear map from latent cells to pixels.

    One small product, since a preview may cost no more than 2 % of a step. `factors` has a row of red,
    green, blue for each latent channel, `bias` one number for each color; colors span -1…1.
    """

    def __init__(self, factors: Sequence[Sequence[float]], bias: Sequence[float]) -> None:
        self.weight = torch.tensor(factors) * 127.5
        self.bias = (torch.tensor(bias) + 1) * 127.5

    def to(self, device: torch.device) -> "PreviewMap":
        """Return the map for latents on a device."""
        moved = copy(self)
        moved.weight, moved.bias = self.weight.to(device), self.bias.to(device)
        return moved

    def draw(self, latents: Float[Tensor, "channels rows columns"]) -> UInt8[Tensor, "rows columns 3"]:
        """Return the RGB levels of an image of one pixel for each latent cell, on the latents' device."""
        cells = latents.float().flatten(1).T
        levels = torch.addmm(self.bias, cells, self.weight).clamp_(0, 255).to(torch.uint8)
        return levels.view(*latents.shape[1:], 3)


def read_preview_map(
    folder: ModelFolder, num_channels: int, default: PreviewMap, device: torch.device
) -> PreviewMap:
    """Return the map of the folder's settings file, else the family's `default`, for latents on `device`.

    Raise `InvalidModel` for a map that does not fit `num_channels` latent channels.
    """
    preview = folder.settings.get("preview")
    if preview is None:
        return default.to(device)
    with suppress(InvalidModel):
        settings = parse_config(_PreviewSettings, preview, SETTINGS_FILE)
        if len(settings.factors) == num_channels:
            return PreviewMap(settings.factors, settings.bias).to(device)
    raise InvalidModel(
        f"{folder.path}/{SETTINGS_FILE}: preview needs factors, {num_channels} rows of 3 numbers, and bias, 3"
    )
