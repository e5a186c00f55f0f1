"""Controls of requests are said in several ways, checked one by one, and bring their images along."""

from dataclasses import replace
from typing import Any

import pytest

from diffuserve.domain.errors import InvalidParams, ModelNotCapable
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.control_use import ControlUse
from diffuserve.domain.requests.image_fields import input_ids
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from support.hand_worker import HAND_SPEC

EDGES, DEPTH = InputImage.blank(64, 32), InputImage("depth", 64, 32)
SPEC = replace(
    HAND_SPEC, has_control_image=True, controlnets=("canny", "union"), control_modes=(0, 3), control_work=0.25
)


def test_a_control_is_said_as_words_or_as_fields() -> None:
    spelled = ControlUse("canny", "a=b.png", 0.8, 0.25, 0.5)
    assert ControlUse.of("canny:0.8:0.25-0.5=a=b.png") == spelled
    assert ControlUse.of({"name": "canny", "image": "e.png"}) == ControlUse.of("canny=e.png")
    assert ControlUse.of(spelled.to_dict()) == spelled


@pytest.mark.parametrize(
    "value",
    [
        "canny",
        "canny:x=e.png",
        "canny:1:0.5=e.png",
        "=e.png",
        "canny=",
        {"name": "canny"},
        {"name": "canny", "image": "e.png", "scale": 1},
        {"name": "../canny", "image": "e.png"},
        {"name": "canny", "image": "e.png", "weight": float("nan")},
        {"name": "canny", "image": "e.png", "weight": -0.1},
        {"name": "canny", "image": "e.png", "weight": True},
        {"name": "canny", "image": "e.png", "start": 0.5, "end": 0.5},
        {"name": "canny", "image": "e.png", "end": 1.5},
        {"name": "canny", "image": "e.png", "mode": -1},
        {"name": "canny", "image": "e.png", "mode": 1.5},
    ],
)
def test_a_control_that_says_nothing_is_refused(value: Any) -> None:
    with pytest.raises(InvalidParams, match="controls"):
        GenerationParams(prompt="x", controls=[value])


def test_a_control_acts_in_the_steps_within_its_part() -> None:
    use = ControlUse("canny", "e.png", start=0.25, end=0.5)
    assert [step for step in range(8) if use.acts_in(step, 8)] == [2, 3]


def test_the_images_of_controls_are_images_of_the_request() -> None:
    uses = [ControlUse("canny", EDGES), ControlUse("union", DEPTH, mode=2)]
    params = GenerationParams(prompt="x", controls=uses)
    assert params.input_images == (("controls", EDGES), ("controls", DEPTH))
    told = params.to_dict()
    assert input_ids(told) == (EDGES.id, "depth")
    assert GenerationParams.from_dict(told) == params
    other = params.with_images(lambda _field, image: DEPTH if image == EDGES else image)
    assert [use.image for use in other.controls or ()] == [DEPTH, DEPTH]


def test_a_control_image_goes_to_the_first_controlnet_with_its_scale() -> None:
    params = GenerationParams(prompt="x", control_image=EDGES, control_scale=0.5)
    assert SPEC.control_uses(SPEC.resolve(params, 0)) == (ControlUse("canny", EDGES, 0.5),)
    with pytest.raises(InvalidParams, match="says the same as controls"):
        GenerationParams(prompt="x", control_image=EDGES, controls=(ControlUse.of("canny=e.png"),))


def test_a_control_makes_a_step_larger_and_gives_it_its_size() -> None:
    plain, controlled = (
        SPEC.resolve(GenerationParams(prompt="x", width=64, height=64, controls=controls), 0)
        for controls in (None, [ControlUse("canny", EDGES)])
    )
    larger = SPEC.workload(controlled).sequence_tokens / SPEC.workload(plain).sequence_tokens
    assert larger == pytest.approx(1.25, rel=0.1)
    unsized = SPEC.resolve(GenerationParams(prompt="x", controls=[ControlUse("canny", EDGES)]), 0)
    assert (unsized.width, unsized.height) == (64, 32)


@pytest.mark.parametrize(
    ("spec", "use", "reason"),
    [
        (SPEC, {"name": "cany"}, "no such ControlNet; known: canny, union.*canny"),
        (SPEC, {"name": "union"}, "give controls with a mode in 0…2"),
        (SPEC, {"name": "union", "mode": 3}, "has a mode in 0…2"),
        (SPEC, {"name": "canny", "mode": 0}, "leave mode out"),
        (HAND_SPEC, {"name": "canny"}, "has no ControlNets; leave controls out"),
    ],
)
def test_a_model_refuses_controls_that_it_does_not_have(
    spec: ModelSpec, use: dict[str, Any], reason: str
) -> None:
    params = GenerationParams(prompt="x", controls=[ControlUse.of({"image": EDGES, **use})])
    with pytest.raises((InvalidParams, ModelNotCapable), match=reason):
        spec.resolve(params, 0)
