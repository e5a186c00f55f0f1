"""Errors of values in a request, in the words of the command line: the field, its value and the remedy."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, get_args

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.requests.params import FIELDS, GenerationParams
from diffuserve.domain.text.nearest import nearest

Location = tuple[str | int, ...]
"""Path to a value in a request, as pydantic gives it: `("body", "items", 3)`."""

MAX_SHOWN_ERRORS = 20
"""Errors of one body that are told; to explain thousands would keep other requests waiting."""

# Names that other tools, and the other dialects of this API, give to a parameter.
_OTHER_NAMES = {alias: name for name, declared in FIELDS.items() for alias in declared.aliases}
_MESSAGES = {
    "missing": "is required",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "list_type": "must be a JSON list",
    "int_parsing": "must be a whole number",
    "float_parsing": "must be a number",
    "bool_parsing": "must be true or false",
} | dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "must be a JSON object")
_WITHOUT_VALUE = frozenset({"missing", "extra_forbidden"})
_NO_VALUE = object()
_SUBJECT = re.compile(r"^\w+ should (?=\w)")  # pydantic's "Input should be …", "List should have …"


@dataclass(frozen=True, kw_only=True)
class FieldError:
    """Error of one value; `field` is its path in the body, or the name of a parameter or header."""

    field: str
    message: str


def field_error(error: Mapping[str, Any]) -> FieldError:
    """Convert pydantic's error: `("body", "input", "width")` becomes `input.width`."""
    part, *path = error["loc"]
    return FieldError(field=".".join(map(str, path)) or str(part), message=_message(error))


def described(error: Mapping[str, Any]) -> str:
    """Return pydantic's error in one line, such as `input.width=0: must be in 1…65536`."""
    told, value = field_error(error), error.get("input", _NO_VALUE)
    if error["type"] in _WITHOUT_VALUE or not isinstance(value, str | int | float | None):
        return f"{told.field}: {told.message}"
    return str(InvalidParams(told.field, _value(error), told.message))


def validation_error(location: Location, message: str, **value: object) -> RequestValidationError:
    """Build the error of one value in the request, which may be given as `input`."""
    return RequestValidationError([{"type": "value_error", "loc": location, "msg": message, **value}])


def with_few_unknown(values: Any, model: type[BaseModel]) -> Any:
    """Return what JSON says, without unknown fields beyond those that are told.

    Pydantic would build an error for each, which takes microseconds, and thousands of them long.
    """
    if isinstance(values, list):
        return [with_few_unknown(value, model) for value in values]
    if not isinstance(values, dict):
        return values
    if len(values) > len(model.model_fields) + MAX_SHOWN_ERRORS:
        unknown = (name for name in values if name not in model.model_fields)
        kept = {*model.model_fields, *islice(unknown, MAX_SHOWN_ERRORS)}
        values = {name: value for name, value in values.items() if name in kept}
    inner = {name: with_few_unknown(values[name], of) for name, of in _models_in(model) if name in values}
    return values | inner


def with_suggestions(errors: Sequence[Any], body: type[BaseModel], depth: int = 1) -> list[Any]:
    """Return the first errors; those of unknown fields say which field of `body` may be meant.

    `depth` is the number of steps in an error's location before the names of the body's own fields.
    """
    return [
        {**error, "msg": _suggestion(error["loc"][depth:], body)}
        if error["type"] == "extra_forbidden"
        else error
        for error in errors[:MAX_SHOWN_ERRORS]
    ]


def likely_field(name: str, body: type[BaseModel]) -> str | None:
    """Return the field of `body` that is known by this name elsewhere, or is spelled much like it."""
    names = _names_of(name)
    return next((other for other in names if other in body.model_fields), nearest(name, body.model_fields))


def nested_errors(
    location: Location, error: ValidationError, model: type[BaseModel]
) -> RequestValidationError:
    """Build the errors of a value whose fields pydantic has rejected; `model` is what it should be."""
    errors = with_suggestions(error.errors(include_url=False), model, depth=0)
    return RequestValidationError([field | {"loc": (*location, *field["loc"])} for field in errors])


def _message(error: Mapping[str, Any]) -> str:
    if error["type"] == "missing" and len(error["loc"]) == 1:
        return "is empty; send JSON"
    if message := _MESSAGES.get(error["type"]):
        return message
    message = str(error["msg"]).removeprefix("Value error, ")
    told = _SUBJECT.sub("must ", message)
    if told == message:  # one of our own
        return message
    return _domain_remedy(str(error["loc"][-1]), _value(error)) or told


def _value(error: Mapping[str, Any]) -> Any:
    """Return the value at fault; in forms, what is out of bounds is a number's text."""
    value = error.get("input")
    if isinstance(value, str) and error["type"].startswith(("greater_than", "less_than")):
        with suppress(ValueError):  # raised for an invalid date
            return int(value) if value.lstrip("+-").isdecimal() else float(value)
    return value


def _domain_remedy(name: str, value: Any) -> str | None:
    """Return what the library objects to in a value of this parameter; `None` if nothing, or no parameter."""
    parameter = _OTHER_NAMES.get(name, name)
    if parameter not in FIELDS:
        return None
    try:
        GenerationParams(**{"prompt": "an image", parameter: value})
    except InvalidParams as error:
        return error.remedy
    return None


def _suggestion(path: Sequence[str | int], body: type[BaseModel]) -> str:
    *parents, last = [step for step in path if isinstance(step, str)]
    here = _fields_at(body, parents)
    if meant := _meant(last, here, ".".join(parents), list(_paths(body))):
        return f"is not a field of this request; did you mean {meant}?"
    return f"is not a field of this request; it takes {', '.join(here)}"


def _meant(name: str, here: Sequence[str], parent: str, paths: Sequence[str]) -> str | None:
    """Return the field that `name` may stand for: one of `here`, or the path of one elsewhere."""
    names = _names_of(name)
    wanted = names[0]
    elsewhere = {path.rpartition(".")[2]: path for path in paths if path.rpartition(".")[0] != parent}
    for other in names:
        if other in here:
            return other
    near = None if wanted in elsewhere else nearest(name, here)
    if near is None and (meant := nearest(wanted, elsewhere)):
        path = elsewhere[meant]
        return path if "." in path else f"{path} outside of {parent}"
    words = set(name.split("_"))
    return near or next((field for field in here if words & set(field.split("_"))), None)


def _names_of(name: str) -> list[str]:
    """Return the names of the parameter that is known by this one, its own first."""
    wanted = _OTHER_NAMES.get(name, name)
    return [wanted, *(other for other, real in _OTHER_NAMES.items() if real == wanted)]


def _fields_at(model: type[BaseModel], parents: Sequence[str]) -> list[str]:
    for name in parents:
        inner = _model_in(model.model_fields[name].annotation)
        assert inner is not None, "pydantic has refused a field of it"
        model = inner
    return list(model.model_fields)


def _paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the path of every field of a model and of those within it."""
    for name, declared in model.model_fields.items():
        yield f"{prefix}{name}"
        if (inner := _model_in(declared.annotation)) is not None:
            yield from _paths(inner, f"{prefix}{name}.")


@cache
def _models_in(model: type[BaseModel]) -> Sequence[tuple[str, type[BaseModel]]]:
    """Return the fields that hold a model or a list of them, and which."""
    models = ((name, _model_in(declared.annotation)) for name, declared in model.model_fields.items())
    return [(name, inner) for name, inner in models if inner is not None]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model that an annotation names, such as that of `list[Item] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)
