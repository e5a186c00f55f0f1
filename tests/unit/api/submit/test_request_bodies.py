"""Request bodies agree with the domain's own types."""

from dataclasses import MISSING, fields
from typing import get_args

import pytest
from pydantic import ValidationError
from pydantic_core import PydanticUndefined

from diffuserve.api.submit.file_formats import IMAGE_FORMATS
from diffuserve.api.submit.request_bodies import GenerationInput, JobEventName, NewJobBody
from diffuserve.domain.jobs.webhook import JOB_EVENTS
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.media.file_names import FORMATS


def test_a_generation_input_has_the_fields_and_defaults_of_the_parameters() -> None:
    accepted = {
        name: MISSING if field.default is PydanticUndefined else field.default
        for name, field in GenerationInput.model_fields.items()
    }
    declared = {field.name: field.default for field in fields(GenerationParams)}
    assert accepted == declared | {"seconds": None}, "which become frames"


def test_webhooks_may_name_every_event_of_a_job() -> None:
    assert get_args(JobEventName) == JOB_EVENTS


def test_each_output_format_is_one_that_image_files_have() -> None:
    assert {f".{name}" for name in IMAGE_FORMATS} <= set(FORMATS)


@pytest.mark.parametrize(
    "change",
    [{"priorty": "batch"}, {"expires_in": "60"}, {"num_previews": 4}, {"metadata": {"note": "x" * 20_000}}],
    ids=["unknown field", "another type", "above the limit", "too long"],
)
def test_an_invalid_field_is_rejected(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        NewJobBody.model_validate({"input": {"prompt": "a cat"}} | change)
