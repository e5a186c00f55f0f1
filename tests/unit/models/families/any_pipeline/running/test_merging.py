"""Which calls may be one pass, and that each gets what it would have had alone."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diffuserve.models.families.any_pipeline.running.call import Call
from diffuserve.models.families.any_pipeline.running.merging import merge_key, run_merged

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
        ({"timestep": torch.tensor([1.0])}, {"timestep": torch.tensor(2.0)}, True),
        ({"text_rope_pos": torch.arange(1)}, {"text_rope_pos": torch.arange(1) + 1}, False),
        ({"residuals": [rows(1, 4)] * 3}, {"residuals": [rows(1, 4, seed=1)] * 3}, True),
        ({"residuals": [rows(1, 4)] * 3}, {"residuals": [rows(1, 4)] * 2}, False),
        (
            {"added_cond_kwargs": {"text_embeds": rows(1, 4)}},
            {"added_cond_kwargs": {"text_embeds": rows(1, 4, seed=1)}},
            True,
        ),
        (
            {"added_cond_kwargs": {"text_embeds": rows(1, 4)}},
            {"added_cond_kwargs": {"text_embeds": rows(1, 5)}},
            False,
        ),
        ({"input_ids": torch.tensor([[1, 2]])}, {"input_ids": torch.tensor([[3, 4]])}, True),
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


def test_nested_arguments_are_joined_each_by_itself() -> None:
    def model(hidden_states: Tensor, added_cond_kwargs: dict[str, Any]) -> Tensor:
        assert added_cond_kwargs["resolution"] is None
        time_ids: Tensor = added_cond_kwargs["time_ids"]
        return hidden_states + time_ids

    calls = [
        call(
            model,
            hidden_states=rows(count, 6),
            added_cond_kwargs={"time_ids": rows(count, 6, seed=count), "resolution": None},
        )
        for count in (2, 1)
    ]
    for each, made in zip(calls, run_merged(calls), strict=True):
        assert torch.equal(made, model(**each.arguments))


def test_lists_of_tensors_with_rows_are_joined_row_by_row() -> None:
    """What a ControlNet adds to the layers is such a list, whose length may be that of the rows by chance."""

    def model(hidden_states: Tensor, residuals: list[Tensor]) -> tuple[list[Tensor]]:
        assert [len(each) for each in residuals] == [len(hidden_states)] * 2
        return ([hidden_states + each for each in residuals],)

    calls = [
        call(model, hidden_states=rows(count, 4), residuals=[rows(count, 4, seed=count)] * 2)
        for count in (2, 1)
    ]
    for each, (made,) in zip(calls, run_merged(calls), strict=True):
        (expected,) = model(**each.arguments)
        assert all(map(torch.equal, made, expected))


class QwenImageTransformer2DModel(nn.Module):
    """A model that masks texts, by the name of one that does."""

    def forward(
        self, hidden_states: Tensor, encoder_hidden_states: Tensor, encoder_hidden_states_mask: Tensor | None
    ) -> Tensor:
        texts, mask = encoder_hidden_states, encoder_hidden_states_mask
        return hidden_states + (texts if mask is None else texts * mask[..., None]).sum(1)


@pytest.mark.parametrize(("short", "is_masked"), [(3, True), (5, False)])
def test_texts_of_unlike_lengths_fit_together_in_a_model_that_masks_them(short: int, is_masked: bool) -> None:
    module = QwenImageTransformer2DModel()
    seen: list[Tensor | None] = []

    def forward(**arguments: Any) -> Tensor:
        seen.append(arguments["encoder_hidden_states_mask"])
        return module(**arguments)  # type: ignore[no-any-return]

    calls = [
        Call(
            "transformer",
            module,
            "forward",
            forward,
            {
                "hidden_states": rows(1, 2, seed=length),
                "encoder_hidden_states": rows(1, length, 2),
                "encoder_hidden_states_mask": None,
            },
        )
        for length in (5, short)
    ]
    assert merge_key(calls[0]) == merge_key(calls[1])
    parts = run_merged(calls)
    assert (seen[0] is not None) is is_masked
    for each, part in zip(calls, parts, strict=True):
        assert torch.allclose(part, module(**each.arguments))


def test_texts_that_a_model_writes_are_no_shared_pass() -> None:
    written = replace(call(input_ids=torch.tensor([[1, 2]])), method="generate")
    assert merge_key(written) != merge_key(replace(written))
