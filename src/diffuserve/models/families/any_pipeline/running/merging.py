"""Calls of several runs as one forward pass: which fit together, and how their rows are joined and split."""

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.weak import WeakIdKeyDictionary

from diffuserve.models.families.any_pipeline.adapters.adapted_layers import adding
from diffuserve.models.families.any_pipeline.adapters.batch_adapters import BatchAdapters
from diffuserve.models.families.any_pipeline.running.call import Call
from diffuserve.models.families.any_pipeline.running.nested import same_kind

# Words in names of arguments that a model reads once for its whole batch, whatever their shapes: positions,
# sizes, and factors. They must be equal in value.
_SHARED_WORDS = (
    "ids",
    "shapes",
    "rotary",
    "rope",
    "freqs",
    "grid",
    "coords",
    "size",
    "lens",
    "scale",
    "kwargs",
)
_ROWS_IN_SPITE_OF_THEIR_NAME = ("input_ids", "time_ids")  # a text encoder's tokens, and SDXL's sizes
_NESTED = ("added_cond_kwargs",)  # arguments that hold arguments

# Models whose texts may differ in length: the argument, and the mask that hides what fills it up.
_MASKED_TEXTS = {"QwenImageTransformer2DModel": ("encoder_hidden_states", "encoder_hidden_states_mask")}

_digests = WeakIdKeyDictionary()


class _Kind(Enum):
    ROWS = auto()  # a tensor with a row for each of the call
    NUMBER = auto()  # a timestep for all rows, which becomes one for each
    LIST = auto()  # a list of tensors, one for each row, whose shapes may differ
    NESTED = auto()  # arguments by name, each of a kind of its own
    COLUMNS = auto()  # a list of tensors with rows, such as what a ControlNet adds to each layer
    TEXT = auto()  # a tensor with rows of any length, in a model that masks what fills them up
    MASK = auto()  # its mask; `None` where all is text
    SAME = auto()  # equal in value in all calls


@dataclass(frozen=True)
class _Argument:
    kind: _Kind
    key: Hashable
    inner: "tuple[tuple[str, _Argument], ...]" = ()


def num_rows(call: Call) -> int:
    """Return the rows of a call: the length of its first tensor, or of its first list of tensors."""
    first = _first_with_rows(call)
    return 1 if first is None else len(first)


def merge_key(call: Call) -> Hashable:
    """Return a key: calls with equal keys can be one pass.

    What encodes images returns no rows to split, and texts that a model writes go on as long as the longest.
    """
    if call.method not in ("forward", "decode"):
        return id(call)
    described = _described(call)
    return (id(call.module), call.method, tuple(sorted(described.items())))


def run_merged(calls: Sequence[Call]) -> list[Any]:
    """Run calls with equal keys as one pass, and return what each would have returned.

    Their adapters may differ: each is added to the rows of its own call.
    """
    rows = [num_rows(call) for call in calls]
    with adding(BatchAdapters.of(rows, [call.adapters for call in calls])):
        return _run(calls, rows)


def _run(calls: Sequence[Call], rows: Sequence[int]) -> list[Any]:
    first = calls[0]
    if len(calls) == 1:
        return [first.function(**first.arguments)]
    joined = {
        name: _join(argument, [call.arguments[name] for call in calls], rows)
        for name, argument in _described(first).items()
        if name in first.arguments
    }
    rows_are_lists = isinstance(_first_with_rows(first), list)
    return _split(first.function(**_masked(first, joined, calls)), rows, rows_are_lists)


def _first_with_rows(call: Call) -> Tensor | list[Tensor] | None:
    return next((value for value in call.arguments.values() if _has_rows(value)), None)


def _has_rows(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.ndim > 0
    return isinstance(value, list) and bool(value) and isinstance(value[0], Tensor)


def _described(call: Call) -> dict[str, _Argument]:
    """Return what a call's arguments must have in common with another's, by name."""
    first = _first_with_rows(call)
    rows = 1 if first is None else len(first)
    described = {
        name: _argument(name, value, rows, isinstance(first, list)) for name, value in call.arguments.items()
    }
    if (names := _masked_text(call)) is not None:
        text, mask = names
        value = call.arguments[text]
        described[text] = _Argument(_Kind.TEXT, (tuple(value.shape[2:]), value.dtype))
        described[mask] = _Argument(_Kind.MASK, None)
    return described


def _argument(name: str, value: Any, rows: int, rows_are_lists: bool) -> _Argument:
    if name in _NESTED and isinstance(value, Mapping):
        inner = {key: _argument(key, each, rows, rows_are_lists) for key, each in value.items()}
        return _Argument(_Kind.NESTED, None, tuple(sorted(inner.items())))
    is_shared = any(word in name for word in _SHARED_WORDS) and name not in _ROWS_IN_SPITE_OF_THEIR_NAME
    if isinstance(value, Tensor) and not is_shared:
        if name.startswith("timestep") and value.ndim < 2 and value.numel() in (1, rows):
            return _Argument(_Kind.NUMBER, value.dtype)
        if value.ndim and len(value) == rows:
            return _Argument(_Kind.ROWS, _shape(value))
    elif isinstance(value, tuple | list) and not is_shared and _are_tensors(value):
        if rows_are_lists and len(value) == rows:
            return _Argument(_Kind.LIST, (value[0].dtype, value[0].ndim))
        if not rows_are_lists and all(len(each) == rows for each in value):
            return _Argument(_Kind.COLUMNS, tuple(map(_shape, value)))
    return _Argument(_Kind.SAME, (rows if isinstance(value, list) else 0, content(value)))


def _shape(value: Tensor) -> Hashable:
    return (tuple(value.shape[1:]), value.dtype)


def _are_tensors(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(each, Tensor) and each.ndim for each in values)


def _join(argument: _Argument, values: Sequence[Any], rows: Sequence[int]) -> Any:
    value = values[0]
    match argument.kind:
        case _Kind.ROWS:
            return torch.cat(list(values))
        case _Kind.NUMBER:
            return torch.cat([each.expand(count) for each, count in zip(values, rows, strict=True)])
        case _Kind.LIST:
            return [each for part in values for each in part]
        case _Kind.NESTED:
            inner = dict(argument.inner)
            return {key: _join(inner[key], [each[key] for each in values], rows) for key in value}
        case _Kind.COLUMNS:
            return type(value)(map(torch.cat, zip(*values, strict=True)))
        case _Kind.TEXT:
            return pad_sequence([row for part in values for row in part], batch_first=True)
        case _Kind.MASK:
            return None  # made of the texts' lengths
        case _Kind.SAME:  # what has rows all the same, such as the positions of each, is repeated with them
            has_rows = isinstance(value, Tensor) and value.ndim > 2 and len(value) == rows[0]
            return torch.cat(list(values)) if has_rows else value


def _masked_text(call: Call) -> tuple[str, str] | None:
    """Return the names of a call's text and of its mask, if its model masks texts."""
    return _MASKED_TEXTS.get(type(call.module).__name__)


def _masked(first: Call, joined: dict[str, Any], calls: Sequence[Call]) -> dict[str, Any]:
    """Add the mask of the joined texts; texts of one length without masks need none."""
    if (names := _masked_text(first)) is None:
        return joined
    text, mask = names
    given = [(call.arguments[text], call.arguments.get(mask)) for call in calls]
    if all(each is None and value.shape[1] == joined[text].shape[1] for value, each in given):
        return joined
    masks = [row for value, each in given for row in _mask(value, each)]
    return joined | {mask: pad_sequence(masks, batch_first=True)}


def _mask(text: Tensor, mask: Tensor | None) -> Tensor:
    return torch.ones(text.shape[:2], dtype=torch.bool, device=text.device) if mask is None else mask.bool()


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


def _split(value: Any, rows: Sequence[int], rows_are_lists: bool) -> list[Any]:
    """Return each call's part of a merged result, each with memory of its own."""
    if isinstance(value, Tensor):
        if value.ndim and len(value) == sum(rows):
            return [part.clone() for part in value.split(list(rows))]
        return [value] * len(rows)
    if rows_are_lists and isinstance(value, list) and len(value) == sum(rows):
        ends = [sum(rows[: i + 1]) for i in range(len(rows))]
        return [value[end - count : end] for end, count in zip(ends, rows, strict=True)]
    if isinstance(value, Mapping):  # such as a `ModelOutput`
        parts = {name: _split(item, rows, rows_are_lists) for name, item in value.items()}
        return [same_kind(value, {name: part[i] for name, part in parts.items()}) for i in range(len(rows))]
    if isinstance(value, tuple | list):
        columns = [_split(item, rows, rows_are_lists) for item in value]
        return [type(value)(column[i] for column in columns) for i in range(len(rows))]
    if value is None or isinstance(value, bool | int | float | str):
        return [value] * len(rows)
    raise TypeError(f"a merged pass returned {type(value).__name__}, which has no rows")
