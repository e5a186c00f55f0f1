"""Convolutions over rows of images, each with the adapters of its row."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from diffuserve.models.layers.adapted.adapters import ConvolutionDelta, RowAdapters


class AdaptedConv2d(nn.Conv2d):
    """A convolution that finds its adapters by its `name`. Its own result does not depend on them."""

    name = ""

    def forward(
        self, x: Float[Tensor, "rows in height width"], adapters: RowAdapters | None = None
    ) -> Float[Tensor, "rows out new_height new_width"]:
        y: Tensor = super().forward(x)
        if adapters is None:
            return y
        assert self.name, "a layer without a name knows no adapters"
        for run in adapters.runs:
            for adapter, weight in run.uses:
                if (delta := adapter.convolutions.get(self.name)) is not None:
                    change = self._change(x[run.start : run.stop], delta)
                    y[run.start : run.stop].add_(change, alpha=weight)
        return y

    def _change(self, x: Tensor, delta: ConvolutionDelta) -> Tensor:
        return F.conv2d(F.conv2d(x, delta.down, None, self.stride, self.padding), delta.up, delta.bias)
