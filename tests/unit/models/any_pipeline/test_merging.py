"""Which calls may be one pass, and that each gets what it would have had alone."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diffuserve.models.any_pipeline.merging import merge_key, run_merged
from diffuserve.models.any_pipeline.run import Call

MODULE = nn.Identity()


def call(function: Any = MODULE.forward, **arguments: Any) -> Call:
    return Call("transformer", MODULE, "forward", function, arguments)


def rows(count: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("one", "other", "fit"),
    [
        ({"hidden_states": rows(1, 4)}, {"hidden_states": rows(2, 4, seed=1)}, True),
        ({"hidden_states": rows(1, 4)}, {"hidden_states": rows(1, 5)}, False),
        ({"hidden_states": rows(1, 4)}, {"hidden_states": rows(1, 4).double()}, False),
        ({"img_ids": rows(1, 4)}, {"img_ids": rows(1, 4, seed=1)}, False),
        ({"img_ids": rows(1, 4)}, {"img_ids": rows(1, 4)}, True),
        ({"img_shapes": [(1, 2)]}, {"img_shapes": [(2, 1)]}, False),
        ({"return_dict": False}, {"return_dict": True}, False),
        ({"timestep": torch.tensor(1.0)}, {"timestep": torch.tensor(2.0)}, True),
        ({"guidance": None}, {"guidance": rows(1)}, False),
        ({"x": [rows(4, 8)]}, {"x": [rows(4, 9), rows(4, 2)]}, True),
    ],
)
def test_calls_fit_together_only_where_what_a_model_reads_once_is_equal(
    one: Mapping[str, Any], other: Mapping[str, Any], fit: bool
) -> None:
    first, second = ({"hidden_states": rows(1, 3), **arguments} for arguments in (one, other))
    if "x" in one:
        first, second = dict(one), dict(other)
    assert (merge_key(call(**first)) == merge_key(call(**second))) is fit


def test_each_call_gets_its_own_rows_of_the_result() -> None:
    def model(
        hidden_states: Tensor, timestep: Tensor, scale: float
    ) -> tuple[Tensor, dict[str, Tensor], float]:
        assert timestep.shape == (3,)
        made = hidden_states * timestep[:, None] * scale
        return made, {"sum": made.sum(1)}, scale

    small, large = rows(1, 4), rows(2, 4, seed=1)
    parts = run_merged(
        [
            call(model, hidden_states=small, timestep=torch.tensor(2.0), scale=0.5),
            call(model, hidden_states=large, timestep=torch.tensor(4.0), scale=0.5),
        ]
    )
    for (made, sums, scale), expected in zip(parts, (small, large * 2), strict=True):
        assert torch.equal(made, expected)
        assert torch.equal(sums["sum"], expected.sum(1))
        assert scale == 0.5
        assert made.untyped_storage().nbytes() == made.nbytes


def test_lists_of_rows_of_unlike_shapes_are_joined_and_split() -> None:
    def model(x: list[Tensor]) -> list[Tensor]:
        return [row + 1 for row in x]

    small, large = [rows(2, 3)], [rows(4, 3), rows(5, 3)]
    first, second = run_merged([call(model, x=small), call(model, x=large)])
    assert torch.equal(first[0], small[0] + 1)
    assert [tuple(row.shape) for row in second] == [(4, 3), (5, 3)]


def test_what_has_no_rows_is_no_merged_result() -> None:
    calls = [call(lambda hidden_states: object(), hidden_states=rows(1, 4)) for _ in range(2)]
    with pytest.raises(TypeError, match="which has no rows"):
        run_merged(calls)
    encodes = [replace(each, method="encode") for each in calls]
    assert merge_key(encodes[0]) != merge_key(encodes[1])
