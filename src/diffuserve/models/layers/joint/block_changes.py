"""What ControlNets add to the image tokens of a packed row after its blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class BlockChanges:
    """What is added to the `rows` of the image row after blocks with two streams, and with a single one.

    There may be fewer changes than blocks: neighbors then share one, or with `repeats` those of two streams
    come again and again.
    """

    rows: Int[Tensor, "changed"]
    double: Sequence[Float[Tensor, "changed d"]]
    single: Sequence[Float[Tensor, "changed d"]]
    repeats: bool = False

    def part(self, image_rows: range) -> "BlockChanges":
        """Return what changes a rank's part of the image row."""
        mine = ((self.rows >= image_rows.start) & (self.rows < image_rows.stop)).nonzero()[:, 0]
        return replace(
            self,
            rows=self.rows[mine] - image_rows.start,
            double=[change[mine] for change in self.double],
            single=[change[mine] for change in self.single],
        )

    def after_double(
        self, image: Float[Tensor, "image d"], index: int, num_blocks: int
    ) -> Float[Tensor, "image d"]:
        """Return the image row after block `index` of two streams."""
        if not self.double:
            return image
        place = index % len(self.double) if self.repeats else _shared(index, num_blocks, len(self.double))
        return image.index_add(0, self.rows, self.double[place])

    def after_single(
        self, joint: Float[Tensor, "joint d"], index: int, num_blocks: int, image_at: Int[Tensor, "image"]
    ) -> Float[Tensor, "joint d"]:
        """Return the joint row after block `index` of a single stream; `image_at` are its image tokens."""
        if not self.single:
            return joint
        change = self.single[_shared(index, num_blocks, len(self.single))]
        return joint.index_add(0, image_at[self.rows], change)


def _shared(index: int, num_blocks: int, num_changes: int) -> int:
    """Return the change of a block where neighbors share one."""
    return index // -(-num_blocks // num_changes)
