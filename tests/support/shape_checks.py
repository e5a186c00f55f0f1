"""Checks of types and shapes, which pytest's option `--jaxtyping-packages` puts into every function."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import jaxtyping

_jaxtyped = jaxtyping.jaxtyped


def check_shapes_where_there_are_any() -> None:
    """Have functions without a shape checked by the type checker alone, which makes it some 20 times faster.

    jaxtyping binds the arguments of every call and remembers its sizes, also of the nine functions in
    ten whose signatures have none. It applies to modules that are imported from now on.
    """
    jaxtyping.jaxtyped = _checked  # type: ignore[assignment]


def _checked(function: Any = None, *, typechecker: Callable[[Any], Any]) -> Any:
    """Return the function or class with its checks, as `jaxtyping.jaxtyped` does."""
    if function is None:
        return partial(_checked, typechecker=typechecker)
    if not inspect.isfunction(function) or _may_have_shapes(function):
        return _jaxtyped(function, typechecker=typechecker)
    return typechecker(function)


def _may_have_shapes(function: Callable[..., Any]) -> bool:
    return any(map(_may_hold_shape, function.__annotations__.values()))


def _may_hold_shape(annotation: Any) -> bool:
    """Tell whether the annotation holds a shape, or is a text that may stand for one."""
    if isinstance(annotation, type) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    return isinstance(annotation, str) or any(map(_may_hold_shape, get_args(annotation)))
