"""Groups of ranks that share the passes of a step: each runs some of them, and all get the results.

Classifier-free guidance takes two passes of each image, which need nothing of one another. So do the images
of a batch: passes are dealt out by what they cost, whichever requests they belong to.

Legend of shapes: `own` rows of this group's passes, `all` rows, `channels` of a row.
"""

from collections.abc import Sequence

import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

Hands = tuple[tuple[int, ...], ...]


def deal(costs: Sequence[float], num_groups: int) -> Hands:
    """Return the indices of the passes that each group runs, in their order, of about equal costs.

    The dearest pass is next, and goes to the group that has the least so far. So of a request's `n` equal
    passes a group has, with those that others leave it, no more to do than `⌈n / num_groups⌉` of each.
    """
    hands: list[list[int]] = [[] for _ in range(num_groups)]
    loads = [0.0] * num_groups
    for index in sorted(range(len(costs)), key=lambda each: -costs[each]):
        least = loads.index(min(loads))
        hands[least].append(index)
        loads[least] += costs[index]
    return tuple(tuple(sorted(hand)) for hand in hands)


class PassRanks:
    """The ranks that are at the same place in the groups that share passes; without a group this one alone.

    All of them must call `gather` in the same order.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.index = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)

    def gather(
        self, own: Float[Tensor, "own channels"], lengths: Sequence[int], hands: Hands
    ) -> list[Float[Tensor, "some channels"]]:
        """Return the rows of each pass; `own` are those of this group's, one after the other, then padding.

        `lengths` are the numbers of rows of all passes, and `hands` the passes that each group has run.
        """
        counts = [sum(lengths[index] for index in hand) for hand in hands]
        parts = [part[:count] for part, count in zip(self._all(own, max(counts)), counts, strict=True)]
        rows: dict[int, Tensor] = {}
        for part, hand in zip(parts, hands, strict=True):
            rows |= zip(hand, part.split([lengths[index] for index in hand]), strict=True)
        return [rows[index] for index in range(len(lengths))]

    def _all(self, own: Tensor, count: int) -> Sequence[Tensor]:
        """Return the rows of all groups, padded to an equal `count`."""
        if self.group is None:
            return [own]
        padded = own.new_zeros(count, *own.shape[1:])
        padded[: len(own)] = own[:count]
        parts = padded.new_empty(self.size, *padded.shape)
        dist.all_gather(list(parts), padded, self.group)
        return parts.unbind()
