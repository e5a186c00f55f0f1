"""The small network by which a ControlNet reads its control image, in the size of latents.

Reference: Zhang et al. 2023, arXiv:2302.05543; diffusers' `ControlNetConditioningEmbedding`, whose parameters
keep their names here.
"""

from collections.abc import Sequence
from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


class ControlEmbedding(nn.Module):
    """Convolutions over the pixels of a control image; each of `widths` but the last halves the size."""

    def __init__(self, widths: Sequence[int], width_after: int) -> None:
        super().__init__()
        self.conv_in = nn.Conv2d(3, widths[0], 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Conv2d(before, after, 3, padding=1, stride=stride)
            for before, width in pairwise(widths)
            for after, stride in ((before, 1), (width, 2))
        )
        self.conv_out = nn.Conv2d(widths[-1], width_after, 3, padding=1)

    def forward(
        self, pixels: Float[Tensor, "images 3 height width"]
    ) -> Float[Tensor, "images channels rows columns"]:
        """Return the features of control images."""
        features = F.silu(self.conv_in(pixels))
        for block in self.blocks:
            features = F.silu(block(features))
        return self.conv_out(features)
