"""Values as diffusers passes them: tensors in tuples, lists, mappings and its `ModelOutput`s."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor


def leaves(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in a value, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from leaves(item)


def storage_bytes(value: Any) -> int:
    """Return the bytes behind the tensors in a value, each storage once."""
    found = (tensor.untyped_storage() for tensor in leaves(value))
    return sum({each._cdata: each.nbytes() for each in found}.values())


def changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a value of the same form with `change` applied to its tensors, in the order of `leaves`."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return same_kind(value, {name: changed(item, change) for name, item in value.items()})
    if isinstance(value, tuple | list):
        return type(value)(changed(item, change) for item in value)
    return value


def same_kind(value: Mapping[str, Any], items: dict[str, Any]) -> Any:
    """Return a mapping of a value's class, such as a `ModelOutput`, which takes its items by name."""
    return items if type(value) is dict else type(value)(**items)
