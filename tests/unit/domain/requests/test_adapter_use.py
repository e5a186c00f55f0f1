"""Adapters of requests: how they are written, and what is refused."""

import pytest

from diffuserve.domain.errors import InvalidParams, ModelNotCapable
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.adapter_use import AdapterUse
from diffuserve.domain.requests.params import GenerationParams

SPEC = ModelSpec(
    name="m",
    family="f",
    width=64,
    height=64,
    num_inference_steps=4,
    max_sequence_length=8,
    longest_sequence_length=8,
    max_adapters=4,
)


def asked(*adapters: object) -> GenerationParams:
    return GenerationParams(prompt="a ring", adapters=list(adapters))  # type: ignore[arg-type]


@pytest.mark.parametrize("written", [AdapterUse("a", 0.5), {"name": "a", "weight": 0.5}, "a:0.5"])
def test_a_use_is_written_in_several_ways(written: object) -> None:
    assert asked(written).adapters == (AdapterUse("a", 0.5),)


def test_a_weight_is_1_and_nothing_is_none() -> None:
    assert asked("a", {"name": "b"}).adapters == (AdapterUse("a"), AdapterUse("b", 1.0))
    assert asked().adapters is None


def test_requests_keep_their_adapters_on_the_way() -> None:
    params = asked("a:-0.5", "b")
    assert GenerationParams.from_dict(params.to_dict()) == params
    assert params.to_dict()["adapters"][0] == {"name": "a", "weight": -0.5}


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (["../a"], "name of letters"),
        ([{"weight": 1}], "must have a name"),
        ([{"name": "a", "scale": 1}], "must have a name"),
        (["a:x"], "NAME:WEIGHT"),
        (["a:nan"], "-10…10"),
        ([{"name": "a", "weight": 11}], "-10…10"),
        ([{"name": "a", "weight": True}], "-10…10"),
        ([{"name": "a", "weight": "1"}], "-10…10"),
        (["a", "a:2"], "twice"),
        (list("abcde"), "at most 4"),
    ],
)
def test_other_values_are_refused(written: list[object], words: str) -> None:
    with pytest.raises(InvalidParams, match=words) as raised:
        asked(*written)
    assert raised.value.field == "adapters"


def test_models_without_adapters_refuse_them() -> None:
    SPEC.resolve(asked("a"), seed=0)
    with pytest.raises((InvalidParams, ModelNotCapable), match="takes no adapters"):
        ModelSpec(**vars(SPEC) | {"max_adapters": 0}).resolve(asked("a"), seed=0)
