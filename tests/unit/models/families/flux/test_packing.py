"""References have places of their own beside the image."""

import itertools

import pytest
import torch

from diffuserve.models.families.flux.positions import layout_rules, reference_corners
from diffuserve.models.layers.joint.packing import Grid, SequenceShape, pack_layout

CPU = torch.device("cpu")
AXES = (4, 6, 6)
RULES = layout_rules(AXES)

GRIDS = [
    [Grid(4, 4)],
    [Grid(4, 6), Grid(4, 6)],
    [Grid(6, 4), Grid(6, 4)],
    [Grid(2, 9), Grid(7, 3), Grid(5, 5), Grid(1, 12)],
]


def cells(grid: Grid, corner: tuple[int, int]) -> set[tuple[int, int]]:
    return {
        (corner[0] + row, corner[1] + column)
        for row, column in itertools.product(range(grid.rows), range(grid.columns))
    }


@pytest.mark.parametrize("grids", GRIDS)
def test_no_reference_stands_on_another(grids: list[Grid]) -> None:
    corners = reference_corners(grids)
    places = [cells(grid, corner) for grid, corner in zip(grids, corners, strict=True)]
    assert corners[0] == (0, 0)
    assert sum(map(len, places)) == len(set().union(*places))


def test_a_wide_image_has_the_next_below_it_and_a_tall_one_beside_it() -> None:
    assert reference_corners(GRIDS[1])[1] == (4, 0)
    assert reference_corners(GRIDS[2])[1] == (0, 4)


def test_references_count_as_image_tokens_of_their_sequence() -> None:
    shapes = [SequenceShape(3, Grid(2, 2)), SequenceShape(2, Grid(2, 3), (Grid(1, 4), Grid(2, 1)))]
    layout = pack_layout(shapes, RULES, CPU)
    assert layout.segments.lengths == (7, 14)
    assert layout.image_owner.tolist() == [0] * 4 + [1] * 12
    assert layout.text_owner.tolist() == [0] * 3 + [1] * 2


def test_a_reference_is_turned_otherwise_than_the_image() -> None:
    layout = pack_layout([SequenceShape(1, Grid(2, 2), (Grid(2, 2),))], RULES, CPU)
    image, reference = layout.image_rotation.split(4)
    turned = AXES[0] // 2  # the channels of the first axis
    assert not torch.equal(image[:, :turned], reference[:, :turned])
    assert torch.equal(image[:, turned:], reference[:, turned:])
