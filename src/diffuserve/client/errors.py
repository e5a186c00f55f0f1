"""The errors that a server's problems stand for, each by its `code`."""

from collections.abc import Mapping
from typing import Any

from diffuserve.domain.errors import (
    DiffuserveError,
    ImageBlocked,
    InvalidParams,
    OutputBlocked,
    RangeNotSatisfiable,
    Refused,
    RequestFailed,
    ServerRefused,
    ServerUnavailable,
    StorageRefused,
)


def error_of(problem: Mapping[str, Any], retry_after: float | None) -> DiffuserveError:
    """Return the error that a problem tells, with its message; `ServerRefused` for an unknown code.

    Raise `KeyError`, `TypeError` or `AttributeError` if it is no problem.
    """
    code, detail = str(problem["code"]), str(problem["detail"])
    kind = _find(code, DiffuserveError) or ServerRefused
    error = kind.__new__(kind, detail)  # their constructors build the message, which is here already
    vars(error).update({name: problem.get(name) for name in kind.facts})
    for told_by, facts in _facts(problem, retry_after).items():
        if isinstance(error, told_by):
            vars(error).update(facts)
    return error


def _find(code: str, kind: type[DiffuserveError]) -> type[DiffuserveError] | None:
    """Return the class with this code among `kind` and its subclasses."""
    if kind.code == code:
        return kind
    return next(filter(None, (_find(code, below) for below in kind.__subclasses__())), None)


def _facts(
    problem: Mapping[str, Any], retry_after: float | None
) -> Mapping[type[DiffuserveError], Mapping[str, Any]]:
    """Return what errors of each class tell beside their message, as far as a problem has it."""
    wrong = (problem.get("errors") or [{}])[0]
    field = wrong.get("field", "")
    return {
        InvalidParams: {"field": field, "value": None, "remedy": wrong.get("message", problem["detail"])},
        RangeNotSatisfiable: {"size": 0},
        Refused: {"retry_after": retry_after},
        ImageBlocked: {"field": field},
        ServerUnavailable: {"retry_after": retry_after or 0.0},
        StorageRefused: {"is_missing": False},
        RequestFailed: {"request_id": ""},
        OutputBlocked: {"category": ""},
    }
