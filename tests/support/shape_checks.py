"""Checks of types and shapes, which pytest's option `--jaxtyping-packages` puts into every function."""

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import partial, wraps
from typing import Any, get_args

import jaxtyping

_jaxtyped = jaxtyping.jaxtyped


def check_shapes_where_there_are_any() -> None:
    """Have functions without a shape checked by the type checker alone, which makes it some 20 times faster.

    jaxtyping binds the arguments of every call and remembers their sizes, also of the nine functions in
    ten whose signatures have none. It applies to modules that are imported from now on.
    """
    jaxtyping.jaxtyped = _checked  # type: ignore[assignment]


def _checked(checked: Any = None, *, typechecker: Callable[[Any], Any]) -> Any:
    """Return the function or class with its checks, as `jaxtyping.jaxtyped` does."""
    if checked is None:
        return partial(_checked, typechecker=typechecker)
    if inspect.isfunction(checked) and not _has_shapes(checked):
        return _without_texts(checked, typechecker)
    if inspect.isfunction(checked) and _returns_at_once(checked):
        return _with_sizes(checked, typechecker)
    if is_dataclass(checked) and inspect.isfunction(made := vars(checked).get("__init__")):
        setattr(checked, "__init__", _checked(made, typechecker=typechecker))  # noqa: B010 (mypy forbids the other way)
        return checked
    return _jaxtyped(checked, typechecker=typechecker)


def _without_texts(function: Any, typechecker: Callable[[Any], Any]) -> Any:
    """Have all checked but texts, which name classes that are defined later: jaxtyping passes them, too."""
    annotations = function.__annotations__
    function.__annotations__ = {name: kind for name, kind in annotations.items() if not isinstance(kind, str)}
    checked = typechecker(function)
    function.__annotations__ = checked.__annotations__ = annotations
    return checked


def _with_sizes(function: Callable[..., Any], typechecker: Callable[[Any], Any]) -> Callable[..., Any]:
    """Have sizes of the same name compared in one check of arguments and result.

    jaxtyping checks the arguments twice, binds them by name, and says all sizes when they differ: that
    takes half the time of a model of a test.
    """
    checked = typechecker(function)

    @wraps(function)
    def compared(*values: Any, **named: Any) -> Any:
        with _jaxtyped("context"):
            return checked(*values, **named)

    return compared


def _returns_at_once(function: Callable[..., Any]) -> bool:
    """Return whether the body has run when a call returns, and no annotation is a text."""
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        return False
    return not any(isinstance(annotation, str) for annotation in function.__annotations__.values())


def _has_shapes(function: Callable[..., Any]) -> bool:
    return any(map(_holds_shape, function.__annotations__.values()))


def _holds_shape(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return "[" in annotation
    if isinstance(annotation, type) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    return any(map(_holds_shape, get_args(annotation)))
