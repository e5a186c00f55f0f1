"""Counts the work that a forward pass would be for a GPU: kernels, bytes, operations and memory.

    with fake_cuda():
        model, inputs = build("cuda:0")
        with KernelCounter() as counter:
            model(inputs)
    print(counter.total.kernels)

Tensors are fake: they have shapes, strides and dtypes, and no memory, so that models of any size are counted
in seconds. Each call that makes no view is a kernel, which reads its operands once and writes its results
once; what caches save, and what a kernel reads again, is not known here. Matrix products and attention are
told apart from the rest, whose time on a GPU is about its bytes over the memory's bandwidth.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, Literal
from unittest.mock import patch

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from support.pretend_cuda import pretend_cuda_guard

Kind = Literal["product", "attention", "elementwise"]
_PRODUCTS = ("addmm", "addmm_", "mm", "bmm", "baddbmm", "_addmm_activation")
_ATTENTIONS = ("_varlen_attn", "_scaled_dot_product_flash_attention")
_ALLOCATIONS = ("empty", "new_empty", "empty_like", "empty_strided")
_OVERWRITES = ("copy_", "fill_", "zero_", "index_copy_")  # they overwrite their target without reading it
_MATRICES = ("mat1", "mat2"), ("self", "mat2"), ("batch1", "batch2")  # names of a product's factors


@dataclass(frozen=True)
class Work:
    """Kernels, the bytes that they read and write, and the floating-point operations of products."""

    kernels: int = 0
    bytes: int = 0
    flops: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.kernels + other.kernels, self.bytes + other.bytes, self.flops + other.flops)


@contextmanager
def fake_cuda() -> Iterator[FakeTensorMode]:
    """Have all tensors that are made within the block be fake, on the CPU or on `cuda:0`."""
    with pretend_cuda_guard(), patch.object(Tensor, "pin_memory", _unpinned), FakeTensorMode() as mode:
        yield mode


def _unpinned(tensor: Tensor) -> Tensor:
    return tensor


class KernelCounter(TorchDispatchMode):
    """Counts what is called within its block, by the operation's name.

    Not to be used in inference mode, where some operations that call others arrive whole.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[str, Work]] = []  # each kernel's operation, in order
        self._living: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak_bytes = 0  # peak memory of the tensors made within the block

    def __enter__(self) -> "KernelCounter":
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    @property
    def by_operation(self) -> Mapping[str, Work]:
        works: defaultdict[str, Work] = defaultdict(Work)
        for name, work in self.calls:
            works[name] += work
        return dict(works)

    @property
    def total(self) -> Work:
        return sum((work for _, work in self.calls), Work())

    def of(self, kind: Kind) -> Work:
        return sum((work for name, work in self.calls if kind_of(name) == kind), Work())

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not any(_aliases(func)):
            self._remember(_tensors(result))
        if not _is_free(func):
            names = [argument.name for argument in func._schema.arguments]
            named = dict(zip(names, args, strict=False)) | (kwargs or {})
            if any(tensor.is_cuda for tensor in _tensors((named, result))):
                self.calls.append((_name(func), _work_of(func, named, result)))
        return result

    def _remember(self, made: Sequence[Tensor]) -> None:
        for tensor in made:
            storage = tensor.untyped_storage()
            reference = StorageWeakRef(storage)
            self._living.setdefault(reference.cdata, (reference, storage.nbytes()))
        self._living = {key: each for key, each in self._living.items() if not each[0].expired()}
        self.peak_bytes = max(self.peak_bytes, sum(num_bytes for _, num_bytes in self._living.values()))


def kind_of(name: str) -> Kind:
    """Return what the operation of this name is."""
    if name in _PRODUCTS:
        return "product"
    return "attention" if name in _ATTENTIONS else "elementwise"


def _name(func: Any) -> str:
    name: str = func._schema.name
    return name.rpartition("::")[2]


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _is_free(func: Any) -> bool:
    """Return whether a call only makes a view, takes memory or asks a tensor something."""
    is_view = any(not alias.is_write for alias in _aliases(func))
    return is_view or func.namespace == "prim" or _name(func) in (*_ALLOCATIONS, "_unsafe_view")


def _aliases(func: Any) -> list[Any]:
    """Return how a call's results share memory with its arguments."""
    return [each.alias_info for each in func._schema.returns if each.alias_info is not None]


def _work_of(func: Any, named: Mapping[str, Any], result: Any) -> Work:
    name = _name(func)
    changed = [each.name for each in func._schema.arguments if each.alias_info and each.alias_info.is_write]
    written = _tensors([named[each] for each in changed]) if changed else _tensors(result)
    unread = [each for each in changed if name in _OVERWRITES or each == "out"]
    read = _tensors([value for each, value in named.items() if each not in unread])
    num_bytes = sum(map(_num_bytes, (*read, *written)))
    if name == "index_select":  # it reads only the selected rows of a larger source
        num_bytes -= max(0, _num_bytes(named["self"]) - _num_bytes(result))
    if name == "index_copy_":
        num_bytes -= _num_bytes(named["self"]) - _num_bytes(named["source"])
    return Work(1, num_bytes, _flops(named) if kind_of(name) == "product" else 0)


def _num_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's memory; what is broadcast is there once."""
    sizes = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    return prod(sizes) * tensor.element_size()


def _flops(named: Mapping[str, Any]) -> int:
    left, right = next((named[a], named[b]) for a, b in _MATRICES if a in named and b in named)
    return 2 * int(left.numel()) * int(right.shape[-1])
