"""The tree of errors, their codes and their messages."""

import re
from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages

import pytest

import diffuserve
from diffuserve.domain import errors
from diffuserve.domain.errors import DiffuserveError, InvalidParams, RequestFailed

# Programs, and what hosts run that have packages of their own.
_NOT_IMPORTED = ("__main__", ".migrations", ".integrations.", ".fleet.ray_")


def descendants(kind: type[DiffuserveError]) -> Iterator[type[DiffuserveError]]:
    for child in kind.__subclasses__():
        yield child
        yield from descendants(child)


def all_errors() -> set[type[DiffuserveError]]:
    """Return the errors of all modules of the package, imported for that."""
    for module in walk_packages(diffuserve.__path__, "diffuserve."):
        if not any(part in module.name for part in _NOT_IMPORTED):
            import_module(module.name)
    return {DiffuserveError, *descendants(DiffuserveError)}


def test_every_error_has_a_code_of_its_own() -> None:
    kinds = all_errors()
    codes = {kind.code for kind in kinds}
    assert len(codes) == len(kinds)
    assert all("code" in vars(kind) for kind in kinds), "inherited, so not its own"
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", code) for code in codes)


def test_every_error_is_declared_where_the_reference_finds_it() -> None:
    elsewhere = {kind for kind in all_errors() if not kind.__module__.startswith(f"{errors.__name__}.")}
    assert elsewhere == set()


def test_an_invalid_parameter_is_a_value_error_that_names_everything() -> None:
    error = InvalidParams("width", 100, "must be a multiple of 16 pixels; try 96 or 112")
    assert isinstance(error, ValueError)
    assert str(error) == "width=100: must be a multiple of 16 pixels; try 96 or 112"
    assert (error.field, error.value) == ("width", 100)


@pytest.mark.parametrize("kind", [RequestFailed, *descendants(RequestFailed)])
def test_a_failed_request_is_named(kind: type[RequestFailed]) -> None:
    error = kind("req-1", "the latents are not finite")
    assert str(error) == "request req-1: the latents are not finite"
    assert error.request_id == "req-1"
