"""Slabs of an image's rows, one for each rank that shares it, and what ranks tell each other of theirs."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from diffuserve.parallel.ranks import SequenceRanks

Features = Float[Tensor, "_batch _channels _rows _width"]


class Slabs:
    """The slabs of an image that `ranks` share in parts as equal as rows can be; alone there is one.

    They exchange few rows, and do so over the host: on a GPU another group must not wait for theirs.
    """

    def __init__(self, ranks: SequenceRanks | None = None) -> None:
        self._ranks = ranks
        self.index, self.size = (0, 1) if ranks is None else (ranks.index, ranks.size)

    def own(self, num_rows: int) -> range:
        """Return the rows of this rank's slab: some on each, if there are no fewer than ranks."""
        return self._of(self.index, num_rows)

    def adjoining(self, own: Features) -> tuple[Features | None, Features | None]:
        """Return the neighbors' rows above and below a slab; beyond the image's edges there are none."""
        if self._ranks is None:
            return None, None
        every = self.gather(torch.cat([own[:, :, :1], own[:, :, -1:]], dim=2))
        above = None if self.index == 0 else every[self.index - 1, :, :, 1:]
        below = None if self.index == self.size - 1 else every[self.index + 1, :, :, :1]
        return above, below

    def gather_rows(self, own: Features, num_rows: int, scale: int) -> Features:
        """Return all rows of a map on every rank; slabs were made of `num_rows`, each `scale` rows now."""
        if self._ranks is None:
            return own
        sizes = [scale * len(self._of(index, num_rows)) for index in range(self.size)]
        padded = F.pad(own, (0, 0, 0, max(sizes) - own.shape[2]))
        return torch.cat(
            [part[:, :, :size] for part, size in zip(self.gather(padded), sizes, strict=True)], dim=2
        )

    def gather(self, values: Float[Tensor, "*shape"]) -> Float[Tensor, "ranks *shape"]:
        """Return what each rank has, in their order."""
        if self._ranks is None:
            return values[None]
        every = self._ranks.gather(values.reshape(1, -1).cpu())
        return every.view(self.size, *values.shape).to(values.device)

    def _of(self, index: int, num_rows: int) -> range:
        return range(index * num_rows // self.size, (index + 1) * num_rows // self.size)
