"""The fields that editors complete are those that a server takes, with the types of their values."""

from types import NoneType
from typing import Any, get_args, get_type_hints

from diffuserve.api.submit.request_bodies import NewJobBody
from diffuserve.domain.requests.params import FIELDS
from diffuserve.domain.requests.request_fields import FieldKind
from diffuserve.sdk.job_fields import Image, JobFields

PLAIN = {FieldKind.TEXT: str, FieldKind.CHOICE: str, FieldKind.INTEGER: int, FieldKind.NUMBER: float}
GIVEN_OTHERWISE = {"kind", "priority", "deadline", "metadata", "webhook"}
"""Fields of a job whose values programs write more loosely than the body has them."""

HINTS = get_type_hints(JobFields)


def kinds(hint: Any) -> set[Any]:
    """Return the types of a hint besides `None`."""
    return set(get_args(hint) or (hint,)) - {NoneType}


def test_the_fields_are_those_of_a_request_and_of_a_job() -> None:
    assert [*HINTS] == [
        name for name in (*FIELDS, *NewJobBody.model_fields) if name not in ("prompt", "input")
    ]
    assert all(NoneType in get_args(hint) for hint in HINTS.values()), "None leaves a field out"


def test_fields_of_a_request_have_the_types_of_their_kinds() -> None:
    for name, declared in FIELDS.items():
        if name != "prompt" and declared.kind in PLAIN:
            assert kinds(HINTS[name]) == {PLAIN[declared.kind]}, name
        elif declared.kind in (FieldKind.IMAGE, FieldKind.IMAGES):
            assert kinds(HINTS[name]) >= kinds(Image), name


def test_fields_of_a_job_have_the_types_of_its_body() -> None:
    body = get_type_hints(NewJobBody)
    for name in NewJobBody.model_fields.keys() - GIVEN_OTHERWISE - {"input"}:
        assert kinds(HINTS[name]) == kinds(body[name]), name
