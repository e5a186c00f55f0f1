"""Slots hold every tensor of a block, and passes may break off."""

import pytest
import torch
from torch import Tensor, nn

from diffuserve.models.offload.block_slots import BlockSlots, num_slots
from diffuserve.models.offload.copier import SyncCopier

CPU = torch.device("cpu")


class Block(nn.Module):
    """Adds up a parameter, and a buffer of another dtype and an odd number of bytes."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), value), requires_grad=False)
        self.codes = nn.Buffer(torch.full((5,), int(value), dtype=torch.int8))

    def forward(self, x: Tensor) -> Tensor:
        if x.isnan().any():
            raise FloatingPointError("a pass that breaks off")
        return x + self.weight.sum() + self.codes.sum()


def run(blocks: list[Block], x: Tensor) -> Tensor:
    for block in blocks:
        x = block(x)
    return x


@pytest.mark.parametrize(("blocks", "slots"), [(57, 3), (30, 2), (7, 7), (1, 1)])
def test_the_fewest_slots_divide_the_blocks(blocks: int, slots: int) -> None:
    assert num_slots(blocks) == slots


def test_parameters_and_buffers_pass_through_the_slots() -> None:
    blocks = [Block(index) for index in range(6)]
    expected = run(blocks, torch.zeros(1))
    slots = BlockSlots(blocks, 2, CPU, SyncCopier())
    assert [run(blocks, torch.zeros(1)).item() for _ in range(3)] == [expected.item()] * 3
    assert slots.device_bytes < slots.bytes_per_pass


@pytest.mark.parametrize("broken_at", range(6))
def test_a_pass_that_broke_off_leaves_the_next_one_right(broken_at: int) -> None:
    blocks = [Block(index) for index in range(6)]
    expected = run(blocks, torch.zeros(1))
    BlockSlots(blocks, 3, CPU, SyncCopier())
    x = run(blocks[:broken_at], torch.zeros(1))
    with pytest.raises(FloatingPointError):
        blocks[broken_at](x * torch.nan)
    assert run(blocks, torch.zeros(1)).equal(expected)


def test_slots_that_do_not_divide_the_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="2 slots do not divide 57 blocks; try 3"):
        BlockSlots([Block(1)] * 57, 2, CPU, SyncCopier())
