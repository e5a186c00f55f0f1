"""Previews: latent channels to RGB by one linear map, a rough image without the decoder."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.folder import SETTINGS_FILE, ModelFolder


class PreviewMap:
    """A linear map from packed tokens, 2×2 latent cells each, to pixels.

    One small product, since a preview may cost no more than 2 % of a step. `factors` has a row of red,
    green, blue for each latent channel, `bias` one number for each colour; colours span -1…1.
    """

    def __init__(self, factors: Sequence[Sequence[float]], bias: Sequence[float]) -> None:
        colours = torch.tensor(factors)
        levels = torch.kron(colours, torch.eye(4)).view(-1, 3, 4).transpose(1, 2)
        self.weight = (levels * 127.5).reshape(-1, 12)
        self.bias = (torch.tensor(bias).repeat(4) + 1) * 127.5

    def draw(self, tokens: Float[Tensor, "tokens channels"], rows: int) -> Image.Image:
        """Return an RGB image of one pixel for each latent cell; `rows` counts rows of tokens."""
        levels = torch.addmm(self.bias, tokens.float().cpu(), self.weight).clamp_(0, 255).to(torch.uint8)
        cells = levels.view(rows, -1, 2, 2, 3).transpose(1, 2)
        return Image.fromarray(cells.reshape(2 * rows, -1, 3).numpy())


def read_preview_map(folder: ModelFolder, num_channels: int, default: PreviewMap) -> PreviewMap:
    """Return the map of the folder's settings file, else the family's `default`.

    Raise `InvalidModel` for a map that does not fit `num_channels` latent channels.
    """
    preview = folder.settings.get("preview")
    if preview is None:
        return default
    try:
        factors, bias = preview["factors"], preview["bias"]
        if [len(row) for row in factors] == [3] * num_channels and len(bias) == 3:
            return PreviewMap(factors, bias)
    except (KeyError, TypeError, ValueError):
        pass
    raise InvalidModel(
        f"{folder.path}/{SETTINGS_FILE}: preview needs factors, {num_channels} rows of 3 numbers, and bias, 3"
    )
