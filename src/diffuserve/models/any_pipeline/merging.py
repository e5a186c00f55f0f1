"""Calls of several runs as one forward pass: which fit together, and how their rows are joined and split."""

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from diffuserve.models.any_pipeline.run import Call

# Words in names of arguments that a model reads once for its whole batch, whatever their shapes: positions,
# sizes, and factors. They must be equal in value.
_SHARED_WORDS = ("ids", "shapes", "rotary", "freqs", "grid", "coords", "size", "lens", "scale", "kwargs")


_digests = WeakIdKeyDictionary()


class _Kind(Enum):
    ROWS = auto()  # a tensor with a row for each of the call
    NUMBER = auto()  # a timestep without rows, which becomes one for each row
    LIST = auto()  # a list of tensors, one for each row, whose shapes may differ
    SAME = auto()  # equal in value in all calls


@dataclass(frozen=True)
class _Argument:
    kind: _Kind
    key: Hashable


def num_rows(call: Call) -> int:
    """Return the rows of a call: the length of its first tensor, or of its first list of tensors."""
    first = next((value for value in call.arguments.values() if _has_rows(value)), None)
    return 1 if first is None else len(first)


def merge_key(call: Call) -> Hashable:
    """Return a key: calls with equal keys can be one pass. What encodes images returns no rows to split."""
    if call.method == "encode":
        return id(call)
    rows = num_rows(call)
    names = sorted(call.arguments)
    return (
        id(call.module),
        call.method,
        tuple((name, _argument(name, call.arguments[name], rows)) for name in names),
    )


def run_merged(calls: Sequence[Call]) -> list[Any]:
    """Run calls with equal keys as one pass, and return what each would have returned."""
    first = calls[0]
    if len(calls) == 1:
        return [first.function(**first.arguments)]
    rows = [num_rows(call) for call in calls]
    joined = {name: _join(name, [call.arguments[name] for call in calls], rows) for name in first.arguments}
    return _split(first.function(**joined), rows)


def _has_rows(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.ndim > 0
    return isinstance(value, list) and bool(value) and isinstance(value[0], Tensor)


def _argument(name: str, value: Any, rows: int) -> _Argument:
    if isinstance(value, Tensor):
        if value.ndim == 0 and name.startswith("timestep"):
            return _Argument(_Kind.NUMBER, value.dtype)
        is_shared = any(word in name for word in _SHARED_WORDS)
        if value.ndim and len(value) == rows and not is_shared:
            return _Argument(_Kind.ROWS, (tuple(value.shape[1:]), value.dtype))
    elif _has_rows(value) and len(value) == rows and all(isinstance(each, Tensor) for each in value):
        return _Argument(_Kind.LIST, (value[0].dtype, value[0].ndim))
    return _Argument(_Kind.SAME, (rows if isinstance(value, list) else 0, content(value)))


def _join(name: str, values: Sequence[Any], rows: Sequence[int]) -> Any:
    value = values[0]
    match _argument(name, value, rows[0]).kind:
        case _Kind.ROWS:
            return torch.cat(list(values))
        case _Kind.NUMBER:
            return torch.cat([each.expand(count) for each, count in zip(values, rows, strict=True)])
        case _Kind.LIST:
            return [each for part in values for each in part]
        case _Kind.SAME:  # what has rows all the same, such as the positions of each, is repeated with them
            has_rows = isinstance(value, Tensor) and value.ndim > 2 and len(value) == rows[0]
            return torch.cat(list(values)) if has_rows else value


def content(value: Any) -> Hashable:
    """Return what two values are equal by."""
    if isinstance(value, Tensor):
        return _tensor_content(value)
    if isinstance(value, tuple | list):
        return tuple(map(content, value))
    if isinstance(value, Mapping):
        return tuple((key, content(item)) for key, item in sorted(value.items()))
    return value if isinstance(value, Hashable) else repr(value)


def _tensor_content(value: Tensor) -> Hashable:
    """Return a tensor's shape and digest; those of a GPU are read once, since reading makes the host wait."""
    if value.device.type == "cpu":
        return _digest(value)
    if value not in _digests:
        _digests[value] = _digest(value)
    found: Hashable = _digests[value]
    return found


def _digest(value: Tensor) -> Hashable:
    levels = value.detach().to("cpu").contiguous().flatten().view(torch.uint8)
    return (tuple(value.shape), value.dtype, hashlib.sha256(levels.numpy().tobytes()).digest())


def _split(value: Any, rows: Sequence[int]) -> list[Any]:
    """Return each call's part of a merged result, each with memory of its own."""
    if isinstance(value, Tensor):
        if value.ndim and len(value) == sum(rows):
            return [part.clone() for part in value.split(list(rows))]
        return [value] * len(rows)
    if isinstance(value, list) and len(value) == sum(rows):
        ends = [sum(rows[: i + 1]) for i in range(len(rows))]
        return [value[end - count : end] for end, count in zip(ends, rows, strict=True)]
    if isinstance(value, Mapping):  # such as a `ModelOutput`
        parts = {name: _split(item, rows) for name, item in value.items()}
        return [_same_kind(value, {name: part[i] for name, part in parts.items()}) for i in range(len(rows))]
    if isinstance(value, tuple | list):
        columns = [_split(item, rows) for item in value]
        return [type(value)(column[i] for column in columns) for i in range(len(rows))]
    if value is None or isinstance(value, bool | int | float | str):
        return [value] * len(rows)
    raise TypeError(f"a merged pass returned {type(value).__name__}, which has no rows")


def _same_kind(value: Mapping[str, Any], parts: dict[str, Any]) -> Any:
    return parts if type(value) is dict else type(value)(**parts)
