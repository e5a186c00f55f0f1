"""Valid parameters are accepted, and others refused with field, value and remedy."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.requests.image_fields import input_ids, mode_of
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import IMAGE_FIELDS, GenerationParams
from diffuserve.domain.requests.request_bounds import MAX_SEED
from diffuserve.domain.requests.samplers import SAMPLERS

# Lone surrogates have no encoding, so no tokenizer and no database accepts them.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=2_000)
PROMPTS = TEXT.filter(lambda text: bool(text.strip()))
SIZES = st.integers(1, 65_536)
IMAGES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9) | st.builds(
    InputImage, st.text("0123456789abcdef", min_size=1), st.integers(1, 9_999), st.integers(1, 9_999)
)
PARAMS = st.fixed_dictionaries(
    {"prompt": PROMPTS},
    optional={
        "negative_prompt": TEXT,
        "width": st.none() | SIZES,
        "height": st.none() | SIZES,
        "num_inference_steps": st.none() | st.integers(1, 100),
        "guidance_scale": st.none() | st.floats(0, 20) | st.integers(0, 20),
        "seed": st.none() | st.integers(0, MAX_SEED - 15),
        "num_images": st.integers(1, 16),
        "num_frames": st.none() | st.integers(1, 1_000),
        "fps": st.none() | st.integers(1, 120),
        "max_sequence_length": st.none() | st.integers(1, 10_000),
        "sampler": st.none() | st.sampled_from(SAMPLERS),
    },
)
WITH_IMAGES = st.fixed_dictionaries(
    {"prompt": PROMPTS, "image": IMAGES | st.lists(IMAGES, min_size=1, max_size=16).map(tuple)},
    optional={
        "mask": st.none() | IMAGES,
        "strength": st.none() | st.floats(0.001, 1.0),
        "control_image": IMAGES,
        "last_image": st.none() | IMAGES,
    },
)
INTEGER_FIELDS = (
    "width",
    "height",
    "num_inference_steps",
    "seed",
    "num_images",
    "num_frames",
    "fps",
    "max_sequence_length",
)


def make_params(**values: Any) -> GenerationParams:
    return GenerationParams(**{"prompt": "a red circle", **values})


@given(PARAMS | WITH_IMAGES)
def test_any_valid_combination_is_accepted_unchanged(values: dict[str, Any]) -> None:
    params = GenerationParams(**values)
    assert {name: getattr(params, name) for name in values} == values


@given(PARAMS | WITH_IMAGES)
def test_params_survive_json(values: dict[str, Any]) -> None:
    params = GenerationParams(**values)
    assert GenerationParams.from_dict(json.loads(json.dumps(params.to_dict()))) == params


def test_fields_of_a_newer_version_are_ignored() -> None:
    newer = {"prompt": "a star", "zeal": 0.5, "seed": 7}
    assert GenerationParams.from_dict(newer) == GenerationParams(prompt="a star", seed=7)


def test_parameters_that_were_not_given_stay_none() -> None:
    assert GenerationParams(prompt="a star").to_dict() == {
        "prompt": "a star",
        "num_images": 1,
    }


def test_zeros_are_values_and_not_missing() -> None:
    assert make_params(seed=0, guidance_scale=0.0).to_dict().keys() >= {"seed", "guidance_scale"}


@pytest.mark.parametrize(
    ("field", "value", "remedy"),
    [
        ("prompt", "", "describe the image"),
        ("prompt", " \t\n\u3000", "describe the image"),
        ("prompt", "x" * 2_001, "at most 2,000"),
        ("prompt", None, "string"),
        ("prompt", 5, "string"),
        ("prompt", b"a star", "string"),
        ("negative_prompt", "x" * 2_001, "at most 2,000"),
        ("negative_prompt", 5, "string"),
        ("width", 0, "in 1…65536"),
        ("height", -16, "in 1…65536"),
        ("width", 65_537, "in 1…65536"),
        ("sampler", "eular", "did you mean 'euler'"),
        ("sampler", 4, "must be one of ddim"),
        ("image", 4.5, "must name an image"),
        ("image", "", "must name an image"),
        ("mask", "mask.png", "give image"),
        ("strength", 0.5, "give image"),
        ("last_image", "end.png", "give image"),
        ("control_scale", 0.5, "give control_image"),
        ("control_image", ["a.png"], "must name an image"),
        ("num_inference_steps", 0, "in 1…100"),
        ("num_inference_steps", 101, "in 1…100"),
        ("guidance_scale", math.nan, "finite"),
        ("guidance_scale", math.inf, "finite"),
        ("guidance_scale", -math.inf, "finite"),
        ("guidance_scale", -0.1, "0…100"),
        ("guidance_scale", 100.1, "0…100"),
        ("guidance_scale", True, "number"),
        ("guidance_scale", "3.5", "number"),
        ("seed", -1, "in 0…9223372036854775807"),
        ("seed", 2**63, "in 0…9223372036854775807"),
        ("num_images", 0, "in 1…16"),
        ("num_images", 17, "in 1…16"),
        ("num_frames", 0, "at least 1"),
        ("max_sequence_length", 0, "in 1…65536"),
    ],
)
def test_a_bad_value_is_refused_with_field_value_and_remedy(field: str, value: object, remedy: str) -> None:
    with pytest.raises(ValueError, match=f"^{field}=") as refusal:
        make_params(**{field: value})
    message = str(refusal.value)
    assert remedy in message
    assert repr(value)[:40] in message
    assert isinstance(refusal.value, InvalidParams)
    assert (refusal.value.field, refusal.value.code) == (field, "invalid_params")


@pytest.mark.parametrize("field", INTEGER_FIELDS)
@pytest.mark.parametrize("value", [True, False, 16.0, "16", [16]])
def test_a_whole_number_is_neither_a_bool_nor_a_float_nor_a_string(field: str, value: object) -> None:
    with pytest.raises(InvalidParams, match=f"^{field}=.*whole number"):
        make_params(**{field: value})


def test_a_count_cannot_be_none() -> None:
    with pytest.raises(InvalidParams, match=r"^num_images=None"):
        make_params(num_images=None)


@pytest.mark.parametrize(
    ("field", "value", "remedy"),
    [
        ("image", ["a.png"] * 17, "at most 16"),
        ("image", ["a.png", None], "must name an image"),
        ("mask", 4, "must name an image"),
        ("control_image", 4, "must name an image"),
        ("last_image", "", "must name an image"),
        ("strength", 0, "0…1"),
        ("strength", 1.5, "0…1"),
        ("strength", math.nan, "finite"),
        ("strength", True, "number"),
    ],
)
def test_a_bad_value_beside_an_image_is_refused(field: str, value: object, remedy: str) -> None:
    with pytest.raises(InvalidParams, match=f"^{field}=.*{remedy}"):
        make_params(**{"image": "a.png", field: value})


def test_a_list_of_images_is_kept_as_a_tuple() -> None:
    assert make_params(image=["a.png", "b.png"]) == make_params(image=("a.png", "b.png"))
    assert make_params(image="a.png").images == ("a.png",)
    assert make_params().images == ()


def test_images_of_all_fields_are_told_and_converted_with_their_fields() -> None:
    brought = {"mask": "m.png", "control_image": "c.png", "last_image": "l.png"}
    params = make_params(image=("a.png", "b.png"), **brought)
    assert dict(params.input_images) == {"image": "b.png", **brought}
    assert params.input_images[0] == ("image", "a.png")
    converted = params.with_images(lambda field, image: InputImage(f"{field} {image}", 2, 1))
    ids = [f"{field} {image}" for field, image in params.input_images]
    assert list(input_ids(converted.to_dict())) == ids
    assert (
        make_params(control_image="c.png").with_images(lambda _field, _image: "d.png").control_image
        == "d.png"
    )
    assert make_params(image=["a.png"]).with_images(lambda _field, image: image).image == ("a.png",)


def test_only_masks_have_no_colors() -> None:
    assert {field for field in IMAGE_FIELDS if mode_of(field) == "L"} == {"mask"}


def test_an_input_image_is_named_without_its_pixels() -> None:
    image = InputImage("abc", 2, 1, pixels=bytes(6))
    assert make_params(image=image).to_dict()["image"] == {
        "id": "abc",
        "width": 2,
        "height": 1,
        "mode": "RGB",
    }
    assert "pixels" not in repr(image)


def test_the_largest_seed_leaves_room_for_every_image() -> None:
    assert make_params(seed=MAX_SEED).seed == MAX_SEED
    assert make_params(seed=MAX_SEED - 3, num_images=4).seed == MAX_SEED - 3
    with pytest.raises(InvalidParams, match=r"^seed=9223372036854775805: .*num_images=4"):
        make_params(seed=MAX_SEED - 2, num_images=4)


def test_a_prompt_may_have_2000_characters_of_any_script() -> None:
    assert make_params(prompt="星" * 2_000).prompt == "星" * 2_000


def test_a_refusal_quotes_no_more_than_the_beginning_of_a_long_value() -> None:
    with pytest.raises(InvalidParams) as refusal:
        make_params(prompt="x" * 1_000_000)
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize("field", ["guidance_scale", "seed", "num_images", "width"])
def test_a_number_beyond_all_bounds_is_refused_like_any_other(field: str) -> None:
    with pytest.raises(InvalidParams, match=f"^{field}="):
        make_params(**{field: 10**400 + 1})


@pytest.mark.parametrize("field", ["prompt", "negative_prompt"])
def test_text_that_cannot_be_encoded_is_refused(field: str) -> None:
    with pytest.raises(InvalidParams, match=f"^{field}="):
        make_params(**{field: "a red \ud800 circle"})


def test_params_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        make_params().seed = 1  # type: ignore[misc]
