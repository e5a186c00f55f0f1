"""A layer's part of an adapter, as files have it."""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor


class LoraPair(NamedTuple):
    """Two matrices that add `scale · up · down` to a layer's weight, and `bias` to its bias.

    `down` has the shape (rank, inputs, …) and `up` (outputs, rank, …), with a kernel's sides in convolutions.
    """

    down: Tensor
    up: Tensor
    scale: float = 1.0
    bias: Tensor | None = None


Components = Mapping[str, Mapping[str, LoraPair]]
"""The pairs of a file, by a model's component and by the layer's name in checkpoints."""
