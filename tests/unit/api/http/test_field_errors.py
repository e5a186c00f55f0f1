"""Errors of values in a request are told as on the command line."""

from typing import Any

import orjson
import pytest
from pydantic import BaseModel, ValidationError

from diffuserve.api.batches.request_bodies import BatchBody
from diffuserve.api.clients.simple import GenerateBody
from diffuserve.api.http.field_errors import MAX_SHOWN_ERRORS, described, with_suggestions
from diffuserve.api.http.json_body import parsed_json
from diffuserve.api.openai.request_bodies import EditBody
from diffuserve.api.pages.session import SignIn
from diffuserve.api.submit.request_bodies import NewJobBody
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.requests.params import GenerationParams


def told(model: type[BaseModel], values: Any) -> list[str]:
    """Return what a client is told of a body that this model refuses."""
    with pytest.raises(ValidationError) as refused:
        model.model_validate(values)
    errors = [{**error, "loc": ("body", *error["loc"])} for error in refused.value.errors()]
    return [described(error) for error in with_suggestions(errors, model)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": ""},
        {"prompt": "x" * 2_001},
        {"prompt": 7},
        {"width": 0},
        {"width": 65_537},
        {"height": "tall"},
        {"num_inference_steps": 0},
        {"num_inference_steps": 101},
        {"num_inference_steps": True},
        {"num_inference_steps": 4.5},
        {"guidance_scale": 101},
        {"seed": -1},
        {"seed": 2**63},
        {"num_images": 17},
        {"max_sequence_length": 0},
        {"image": "cat.png", "strength": 0},
        {"image": "cat.png", "strength": 1.5},
    ],
    ids=str,
)
def test_a_parameter_is_refused_in_the_words_of_the_library(wrong: dict[str, Any]) -> None:
    values = {"prompt": "a cat"} | wrong
    with pytest.raises(InvalidParams) as refused:
        GenerationParams(**values)
    assert told(NewJobBody, {"input": values}) == [f"input.{refused.value}"]


@pytest.mark.parametrize(
    ("field", "meant"),
    [
        ("steps", "num_inference_steps"),
        ("num_inference_step", "num_inference_steps"),
        ("n", "num_images"),
        ("num_outputs", "num_images"),
        ("cfg_scale", "guidance_scale"),
        ("guidance", "guidance_scale"),
        ("negative", "negative_prompt"),
        ("sed", "seed"),
        ("size", "width"),
        ("init_image", "image"),
        ("input_image", "image"),
        ("mask_image", "mask"),
        ("denoising_strength", "strength"),
        ("prompt_strength", "strength"),
        ("scheduler", "sampler"),
        ("expand_prompt", "expand_prompt outside of input"),
    ],
)
def test_an_unknown_field_of_the_input_names_the_one_that_is_meant(field: str, meant: str) -> None:
    [error] = told(NewJobBody, {"input": {"prompt": "a cat", field: 1}})
    assert error == f"input.{field}: is not a field of this request; did you mean {meant}?"


@pytest.mark.parametrize(
    ("model", "values", "field", "meant"),
    [
        (NewJobBody, {"input": {"prompt": "a"}, "priorty": "batch"}, "priorty", "priority"),
        (NewJobBody, {"input": {"prompt": "a"}, "steps": 4}, "steps", "input.num_inference_steps"),
        (NewJobBody, {"input": {"prompt": "a"}, "num_outputs": 4}, "num_outputs", "input.num_images"),
        (NewJobBody, {"prompt": "a"}, "prompt", "input.prompt"),
        (NewJobBody, {"input": {"prompt": "a"}, "widht": 64}, "widht", "input.width"),
        (BatchBody, {"items": [], "webhook_url": "x"}, "webhook_url", "webhook"),
        (BatchBody, {"items": [{"prompt": "a"}]}, "items.0.prompt", "items.input.prompt"),
        (GenerateBody, {"prompt": "a", "num_inference_steps": 4}, "num_inference_steps", "steps"),
    ],
)
def test_every_body_knows_its_own_fields(model: type[BaseModel], values: Any, field: str, meant: str) -> None:
    expected = f"{field}: is not a field of this request; did you mean {meant}?"
    assert expected in told(model, values)


UNKNOWN = {f"field_{number}": 1 for number in range(5_000)}
JOB: dict[str, Any] = {"input": {"prompt": "a"}}


def test_of_thousands_of_unknown_fields_the_first_are_told() -> None:
    errors = told(NewJobBody, {"input": {"prompt": "a"}, **{f"field_{number}": 1 for number in range(5_000)}})
    assert len(errors) == MAX_SHOWN_ERRORS


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (NewJobBody, JOB | UNKNOWN),
        (NewJobBody, {"input": JOB["input"] | UNKNOWN}),
        (NewJobBody, JOB | {"webhook": {"url": "https://a.b", "events": [*UNKNOWN]}}),
        (EditBody, {"prompt": "a", "images": [*UNKNOWN]}),
        (BatchBody, {"items": [{"custom_id": "a"} | JOB | UNKNOWN]}),
        (SignIn, {"key": "a"} | UNKNOWN),
    ],
)
def test_few_of_thousands_of_errors_are_built(model: type[BaseModel], values: Any) -> None:
    """Each takes microseconds, in which no other request is served."""
    with pytest.raises(ValidationError) as refused:
        model.model_validate(parsed_json(orjson.dumps(values), model))
    assert refused.value.error_count() <= MAX_SHOWN_ERRORS


def test_an_unknown_field_like_no_other_names_those_that_there_are() -> None:
    [error] = told(GenerateBody, {"prompt": "a", "zzz": 1})
    told_of = "prompt, kind, output_format, model, negative_prompt, lyrics, width, height, steps"
    assert error.startswith(f"zzz: is not a field of this request; it takes {told_of}, guidance_scale, ")
    assert "num_images" not in error


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"input": []}, "input: must be a JSON object"),
        ({"input": {}}, "input.prompt: is required"),
        ({"input": {"prompt": "a\0"}}, "input.prompt='a\\x00': must not contain the character U+0000"),
        ({"expand_prompt": "yes"}, "expand_prompt='yes': must be true or false"),
        ({"priority": "urgent"}, "priority='urgent': must be 'interactive', 'standard' or 'batch'"),
        ({"num_previews": 4}, "num_previews=4: must be less than or equal to 3"),
        (
            {"output_format": "avi"},
            "output_format='avi': must be one of png, webp, jpeg, mp4, webm, gif, wav, flac",
        ),
        ({"metadata": []}, "metadata: must be a JSON object"),
    ],
)
def test_other_values_are_told_with_their_remedy(change: Any, error: str) -> None:
    assert told(NewJobBody, {"input": {"prompt": "a"}} | change) == [error]


DATA_URL = "data:image/png;base64," + "QUJD" * 1_000


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (
            {"image": 7},
            "image=7: must be a string: the id of an uploaded file, a data: URL, or an https: URL",
        ),
        ({"image": []}, "image: has 0 images; give 1 to 16"),
        ({"image": ["a"] * 17}, "image: has 17 images; give 1 to 16"),
        (
            {"image": ["a", ""]},
            "image: must be a string: the id of an uploaded file, a data: URL, or an https: URL",
        ),
        ({"image": "a\0"}, "image='a\\x00': must not contain the character U+0000"),
        ({"mask": "\udc00"}, "mask='\\udc00': must be ASCII; encode other characters as in a URL"),
        (
            {"mask": DATA_URL + "é"},
            "mask='data:image/png;base64,…': must be ASCII; encode other characters as in a URL",
        ),
        ({"image": [DATA_URL, "é"]}, "image: must be ASCII; encode other characters as in a URL"),
        ({"strength": DATA_URL}, "strength='data:image/png;base64,…': must be a number"),
    ],
)
def test_an_input_image_is_refused_without_its_content(change: Any, error: str) -> None:
    assert told(NewJobBody, {"input": {"prompt": "a"} | change}) == [f"input.{error}"]


def test_the_name_of_an_image_is_short_unless_it_is_a_data_url() -> None:
    [error] = told(NewJobBody, {"input": {"prompt": "a", "image": "https://a.test/" + "x" * 5_000}})
    assert "has 5,015 characters; at most 2,048 are allowed, unless it is a data: URL" in error
    assert len(error) < 200
    NewJobBody.model_validate({"input": {"prompt": "a", "image": [DATA_URL, "file-1"], "mask": DATA_URL}})


def test_a_missing_object_is_required() -> None:
    assert told(NewJobBody, {}) == ["input: is required"]
