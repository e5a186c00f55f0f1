"""Tensors that are read when they are written: a converter renames and cuts them before there are any.

diffusers' converters take a whole checkpoint and return it under other names, some tensors cut or joined.
Given these in place of tensors they do the same with shapes alone, and what they did is done again with one
tensor at a time, so that memory never holds a checkpoint.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from diffuserve.models.checkpoint_files.checkpoint_file import CheckpointFile, TensorInfo
from diffuserve.models.checkpoint_files.few_bits import Pieces, Rows, pieces_after

_LARGE = 1 << 20  # numbers


@dataclass(frozen=True, eq=False)
class Deferred:
    """A tensor that will be: `meta` has its shape and dtype, `compute` its content.

    `sources` are the tensors of the file that it is made of. `pieces` are the rows of the file that it
    consists of, as long as rows were only cut and joined.
    """

    meta: Tensor
    compute: Callable[[], Tensor]
    sources: frozenset[str]
    pieces: Pieces | None = None

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Sequence[type],
        arguments: tuple[Any, ...] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        return _apply(function, *arguments, **options or {})

    def __getattr__(self, name: str) -> Any:
        """Return a method of the tensor that is deferred, or what is known of it, such as its shape."""
        value = getattr(self.meta, name)
        if isinstance(value, Tensor):  # such as `.T`
            return Deferred(value, lambda: getattr(self.compute(), name), self.sources)
        return partial(_apply, getattr(Tensor, name), self) if callable(value) else value

    def __getitem__(self, place: Any) -> "Deferred":
        return Deferred(self.meta[place], lambda: self.compute()[place], self.sources)


class _Reader:
    """Reads a file's tensors, and keeps the last large one: it is often cut in several."""

    def __init__(self, file: CheckpointFile) -> None:
        self._file = file
        self._kept: tuple[str, Tensor] | None = None

    def read(self, name: str) -> Tensor:
        if self._kept is not None and self._kept[0] == name:
            return self._kept[1]
        if prod(self._file.tensors[name].shape) < _LARGE:
            return self._file.read(name)
        self._kept = None  # so that memory holds one at a time
        self._kept = name, self._file.read(name)
        return self._kept[1]


def defer(file: CheckpointFile, names: Mapping[str, str]) -> dict[str, Any]:
    """Return tensors of a file as deferred ones, by the new names that `names` gives to their own."""
    reader, tensors = _Reader(file), file.tensors
    return {new: _read_later(reader, own, tensors[own]) for own, new in names.items()}


def _read_later(reader: _Reader, name: str, info: TensorInfo) -> Deferred:
    if not hasattr(torch, info.dtype):
        raise ValueError(f"{name} is stored as {info.stored_as}, which is not read")
    meta = torch.empty(info.shape, dtype=getattr(torch, info.dtype), device="meta")
    pieces = (Rows(name, 0, info.shape[0]),) if info.shape else None
    return Deferred(meta, partial(reader.read, name), frozenset({name}), pieces)


def _apply(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a function of torch with what its arguments will be, and return its results so too."""
    found = function(*_resolved(arguments, _meta), **options)

    def result(index: int) -> Tensor:
        results = function(*_resolved(arguments, _computed), **options)
        return results[index] if isinstance(found, tuple | list) else results

    results = [found] if isinstance(found, Tensor) else found
    if not isinstance(results, tuple | list) or not all(isinstance(each, Tensor) for each in results):
        return found
    given = list(_deferred(arguments))
    sources = frozenset[str]().union(*(tensor.sources for tensor in given))
    inputs = [(tensor.meta.shape, tensor.pieces) for tensor in given]
    pieces = pieces_after(function.__name__, inputs, [each.shape for each in results])
    deferred = tuple(
        Deferred(each, partial(result, index), sources, pieces[index]) for index, each in enumerate(results)
    )
    return deferred[0] if isinstance(found, Tensor) else deferred


def _deferred(value: Any) -> Iterator[Deferred]:
    """Yield the deferred tensors among arguments."""
    if isinstance(value, Deferred):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _deferred(each)


def _resolved(value: Any, resolve: Callable[[Deferred], Tensor]) -> Any:
    if isinstance(value, Deferred):
        return resolve(value)
    if isinstance(value, tuple | list):
        return type(value)(_resolved(each, resolve) for each in value)
    return value


def _meta(tensor: Deferred) -> Tensor:
    return tensor.meta


def _computed(tensor: Deferred) -> Tensor:
    return tensor.compute()
