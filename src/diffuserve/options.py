"""Declare a configuration's fields once: as dataclass fields that are settings and command-line options too.

A field made by `option` carries its default, its help text and its range. `diffuserve.settings` turns
each into a setting `DIFFUSERVE_<NAME>`, and the command line turns each setting into an option.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

Config = TypeVar("Config")
_KEY = "option"


@dataclass(frozen=True, kw_only=True)
class Option:
    """Help text and range of an option; a bound that is `None` does not apply."""

    help: str
    gt: float | None = None
    ge: float | None = None
    le: float | None = None


def option(
    default: Any = MISSING,
    help: str = "",
    *,
    default_factory: Callable[[], Any] | None = None,
    **bounds: float,
) -> Any:
    """Return a dataclass field that operators may set.

    `help` is a sentence for operators; `bounds` are `gt`, `ge` and `le` of `Option`.
    """
    metadata = {_KEY: Option(help=help, **bounds)}
    if default_factory is not None:
        return field(default_factory=default_factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def option_fields(config: type) -> dict[str, Field[Any]]:
    """Return the options of a dataclass and of the dataclasses nested in it, by name."""
    return {declared.name: declared for declared in _walk(config)}


def option_of(declared: Field[Any]) -> Option:
    """Return what `option` declared about a field of `option_fields`."""
    found: Option = declared.metadata[_KEY]
    return found


def configured(config: type[Config], values: Mapping[str, Any], **given: Any) -> Config:
    """Build a dataclass, and those nested in it, from the `values` of its options.

    `given` are fields that are no options. What neither names keeps its default.
    """
    kind: Any = config
    for declared in fields(kind):
        if _KEY in declared.metadata and declared.name in values:
            given[declared.name] = values[declared.name]
        elif declared.name not in given and isinstance(declared.type, type) and is_dataclass(declared.type):
            given[declared.name] = configured(declared.type, values)
    return config(**given)


def _walk(config: Any) -> Iterator[Field[Any]]:
    for declared in fields(config):
        if _KEY in declared.metadata:
            yield declared
        elif is_dataclass(declared.type):
            yield from _walk(declared.type)
