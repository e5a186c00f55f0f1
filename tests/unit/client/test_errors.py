"""Each error of the tree reaches the client as the server raised it."""

from inspect import signature

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request

from diffuserve.api.http.problems import problem_of, problem_response
from diffuserve.client.http import error_from
from diffuserve.domain import errors
from diffuserve.domain.errors import (
    DiffuserveError,
    InvalidParams,
    OutputBlocked,
    ServerRefused,
    StorageRefused,
)

KINDS = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, DiffuserveError)
]
SAMPLES = {
    "message": "told",
    "retry_after": 3.0,
    "field": "width",
    "value": 7,
    "remedy": "must be larger",
    "category": "gore",
    "finish_in": 5.0,
    "likely": 9.0,
    "eta_s_low": 1.0,
    "eta_s_high": 2.0,
    "job_id": "job_1",
    "asked": "bytes=9-",
    "size": 7,
    "request_id": "req-1",
    "reason": "why",
}
NOT_TOLD = {
    DiffuserveError: {"value", "size", "is_missing", "request_id"},
    OutputBlocked: {"category"},  # a job's failure tells it
    StorageRefused: {"retry_after"},
}


def sample(kind: type[DiffuserveError]) -> DiffuserveError:
    wanted = signature(kind.__init__).parameters.keys() & SAMPLES.keys()
    return kind(**{name: SAMPLES[name] for name in wanted}) if wanted else kind("told")


def through_a_server(error: DiffuserveError) -> DiffuserveError:
    scope = {
        "type": "http",
        "path": "/v1/jobs",
        "headers": [],
        "app": Starlette(),
        "state": {"request_id": "r"},
    }
    response = problem_response(problem_of(error), Request(scope))
    return error_from(
        httpx.Response(response.status_code, headers=response.headers, content=bytes(response.body))
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.code)
def test_an_error_arrives_as_itself_with_its_message_and_facts(kind: type[DiffuserveError]) -> None:
    error = sample(kind)
    told = through_a_server(error)
    assert (type(told), str(told)) == (kind, str(error))
    assert vars(told).keys() >= vars(error).keys(), "no attribute is missing where somebody looks at it"
    compared = vars(error).keys() - NOT_TOLD[DiffuserveError] - NOT_TOLD.get(kind, set())
    assert {name: vars(told)[name] for name in compared} == {name: vars(error)[name] for name in compared}


@pytest.mark.parametrize("errors", [["text"], {"field": "a"}, "text", 7, [None], [[]]])
def test_a_problem_whose_errors_are_none_is_a_refusal_too(errors: object) -> None:
    problem = {"code": "invalid_params", "detail": "told", "errors": errors}
    response = httpx.Response(422, json=problem, request=httpx.Request("GET", "http://server.test"))
    assert type(error_from(response)) is ServerRefused


def test_an_invalid_body_names_its_first_field_and_an_unknown_code_is_a_refusal() -> None:
    problem = {"code": "invalid_params", "detail": "a: x; b: y", "errors": [{"field": "a", "message": "x"}]}
    invalid = error_from(httpx.Response(422, json=problem))
    assert isinstance(invalid, InvalidParams)
    assert (invalid.field, invalid.remedy, str(invalid)) == ("a", "x", "a: x; b: y")
    newer = error_from(httpx.Response(409, json={"code": "of_tomorrow", "detail": "told"}))
    assert (type(newer), str(newer)) == (ServerRefused, "told")
