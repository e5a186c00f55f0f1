"""Tensors that say they are on a CUDA device, and compute on the CPU.

Operations run on the CPU tensors inside, with real numbers. What CUDA would refuse is refused: tensors of two
devices in one operation, a generator of the CPU, a dtype that FlashAttention does not have.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from support.pretend_streams import ORDER, Written

CUDA = torch.device("cuda:0")

_MOVES = ("aten::_to_copy", "aten::copy_")
_INDEXES = ("aten::index", "aten::index_put_", "aten::index_put")
# Their results' sizes are known to the device alone.
_SYNCS = ("aten::nonzero", "aten::masked_select", "aten::equal", "aten::repeat_interleave", "aten::_unique2")


class PretendTensor(torch.Tensor):
    """A CUDA tensor to all that asks; `cpu_tensor` holds its numbers."""

    cpu_tensor: Tensor
    written: Written

    @staticmethod
    def __new__(cls, cpu_tensor: Tensor, written: Written | None = None) -> "PretendTensor":
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            cpu_tensor.shape,
            strides=cpu_tensor.stride(),
            storage_offset=cpu_tensor.storage_offset(),
            dtype=cpu_tensor.dtype,
            device=CUDA,
            requires_grad=False,
        )
        made.cpu_tensor, made.written = cpu_tensor, written or Written()
        pretended: PretendTensor = made
        return pretended

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _dispatch(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"PretendTensor(shape={tuple(self.shape)}, dtype={self.dtype})"


def pretend_empty(size: Sequence[int], *, dtype: Any = None, memory_format: Any = None, **_: Any) -> Tensor:
    """Stand in for `aten::empty.memory_format` on CUDA."""
    layout = memory_format or torch.contiguous_format
    return PretendTensor(torch.empty(size, dtype=dtype, memory_format=layout))


def pretend_empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: Any = None, **_: Any
) -> Tensor:
    """Stand in for `aten::empty_strided` on CUDA."""
    return PretendTensor(torch.empty_strided(size, stride, dtype=dtype))


def _dispatch(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    name: str = func._schema.name
    tensors = [leaf for leaf in _leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    mine = [tensor for tensor in tensors if isinstance(tensor, PretendTensor)]
    if _is_composite(func):  # in inference mode composite operations arrive undecomposed
        return func.decompose(*args, **kwargs)
    if name in _MOVES:
        return _move(func, name, args, kwargs)
    _refuse_mixed(func, name, tensors, kwargs)
    if name == "aten::_local_scalar_dense" or name in _SYNCS:
        ORDER.issue(name, _memory(mine), [])
        ORDER.wait(name.removeprefix("aten::"))
    if name == "aten::_fused_sdp_choice":
        return 0  # plain operations: the fused kernels of a CPU are others than those of CUDA
    if _is_view(func):
        return _view(func, mine, _inner(args), _inner(kwargs))
    computed = _compute(func, name, _inner(args), _inner(kwargs))
    in_place = _writes_in_place(func)
    result = kwargs.get("out", args[0]) if in_place else _mapped(_wrapped, computed)
    _issue(name, mine, _leaves(result))
    return result


def _view(func: Any, mine: Sequence[PretendTensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    # A view of a tensor that was made outside inference mode is none of inference mode either.
    outside = bool(mine) and not mine[0].is_inference()
    with torch.inference_mode(False) if outside else contextlib.nullcontext():
        return _mapped(partial(_wrapped, written=mine[0].written if mine else None), func(*args, **kwargs))


def _move(func: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Copy between devices, or between dtypes on one."""
    target, source = args[0], args[1] if name == "aten::copy_" else args[0]
    device = kwargs.get("device")
    if name == "aten::copy_":
        to_cuda = isinstance(target, PretendTensor)
    else:
        to_cuda = isinstance(source, PretendTensor) if device is None else torch.device(device).type == "cuda"
    from_cuda = isinstance(source, PretendTensor)
    result = func(*_inner(args), **_inner(kwargs))
    moved = target if name == "aten::copy_" else PretendTensor(result) if to_cuda else result
    _issue(name, [source], [moved])
    if from_cuda != to_cuda and not _is_non_blocking(args, kwargs):
        ORDER.wait("copy to the device" if to_cuda else "copy to the host")
    return moved


def _is_non_blocking(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a copy lets the host go on; one to the host from pageable memory never does."""
    return bool(kwargs.get("non_blocking") or args[2:3] == (True,))


def _refuse_mixed(func: Any, name: str, tensors: Sequence[Tensor], kwargs: Mapping[str, Any]) -> None:
    """Raise what CUDA raises for operands of two devices. Numbers may be on the CPU, and indices too."""
    for tensor in tensors:
        if isinstance(tensor, PretendTensor) or tensor.dim() == 0:
            continue
        if name in _INDEXES:
            ORDER.wait("index of the host")
            continue
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
            f"({func}, a tensor of the shape {tuple(tensor.shape)})"
        )
    generator = kwargs.get("generator")
    if isinstance(generator, torch.Generator) and generator.device.type == "cpu":
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")


def _compute(func: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if name == "aten::_addmm_activation" and kwargs.get("use_gelu"):  # a CPU has the exact GELU here
        return torch.nn.functional.gelu(torch.addmm(*args), approximate="tanh")
    return _flash(*args) if name == "torch_attn::_varlen_attn" else func(*args, **kwargs)


def _inner(values: Any) -> Any:
    """Return arguments as the CPU takes them."""
    replaced = _mapped(_of_cpu, values)
    if isinstance(replaced, dict):
        replaced.pop("pin_memory", None)
    return replaced


def _leaves(values: Any) -> list[Any]:
    """Return what operations are given and return, out of tuples, lists and dicts.

    torch's own trees, which know many more kinds, took a third of the time of a step.
    """
    if type(values) in (tuple, list):
        return [leaf for value in values for leaf in _leaves(value)]
    return _leaves(list(values.values())) if isinstance(values, Mapping) else [values]


def _mapped(change: Callable[[Any], Any], values: Any) -> Any:
    """Return the same with every leaf changed."""
    if type(values) in (tuple, list):
        return type(values)([_mapped(change, value) for value in values])
    if isinstance(values, Mapping):
        return {name: _mapped(change, value) for name, value in values.items()}
    return change(values)


def _of_cpu(value: Any) -> Any:
    if isinstance(value, PretendTensor):
        return value.cpu_tensor
    is_cuda = isinstance(value, torch.device) and value.type == "cuda"
    return torch.device("cpu") if is_cuda else value


def _wrapped(value: Any, written: Written | None = None) -> Any:
    return PretendTensor(value, written) if isinstance(value, Tensor) else value


def _issue(name: str, reads: Sequence[Any], writes: Sequence[Any]) -> None:
    ORDER.log.kernel(name.removeprefix("aten::"), ORDER.current().name)
    ORDER.issue(name, _memory(reads), _memory(writes))


def _memory(tensors: Sequence[Any]) -> list[Written]:
    return [tensor.written for tensor in tensors if isinstance(tensor, PretendTensor)]


@cache
def _is_composite(func: Any) -> bool:
    name, key = func.name(), "CompositeImplicitAutograd"
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


@cache
def _is_view(func: Any) -> bool:
    aliases = [each.alias_info for each in func._schema.returns if each.alias_info is not None]
    return any(not alias.is_write for alias in aliases)


@cache
def _writes_in_place(func: Any) -> bool:
    returns = func._schema.returns
    return bool(returns) and returns[0].alias_info is not None and returns[0].alias_info.is_write


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    longest_query: int,
    longest_key: int,
    is_causal: bool = False,
    _scale: float | None = None,
    _window: Sequence[int] | None = None,
    enable_gqa: bool = False,
    *_options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attend as FlashAttention's varlen kernel, and refuse what it refuses."""
    for starts, rows, longest in ((query_starts, query, longest_query), (key_starts, key, longest_key)):
        _check(starts.dtype == torch.int32 and starts.is_contiguous(), "the starts must be int32")
        _check(int(starts[-1]) == len(rows), "the starts must end with the number of tokens")
        _check(int(starts.diff().max()) <= longest, "a sequence is longer than the longest")
    for rows in (query, key, value):
        _check(rows.dtype in (torch.bfloat16, torch.float16), f"FlashAttention has no {rows.dtype}")
        _check(rows.shape[-1] % 8 == 0 and rows.shape[-1] <= 256, f"no head has {rows.shape[-1]} channels")
        _check(rows.stride(-1) == 1, "the last dimension must be contiguous")
    _check(enable_gqa or query.shape[1] == key.shape[1], "keys have other heads than queries")
    spans = zip(_spans(query_starts), _spans(key_starts), strict=True)
    attended = [_attend(query[rows], key[keys], value[keys], is_causal) for rows, keys in spans]
    return torch.cat(attended), query.new_empty(query.shape[1], len(query)), torch.zeros(2, dtype=torch.int64)


def _spans(starts: Tensor) -> list[slice]:
    ends: list[int] = starts.tolist()
    return [slice(start, end) for start, end in pairwise(ends)]


def _attend(query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> Tensor:
    q, k, v = (rows.transpose(0, 1)[None] for rows in (query, key, value))
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=is_causal, enable_gqa=q.shape[1] != k.shape[1]
    )[0].transpose(0, 1)


def _check(holds: bool, refusal: str) -> None:
    if not holds:
        raise RuntimeError(f"varlen attention: {refusal}")


Kernel = Callable[..., Tensor]
EMPTY_KERNELS: Mapping[str, Kernel] = {
    "empty.memory_format": pretend_empty,
    "empty_strided": pretend_empty_strided,
}
"""The operations that make the first tensor of a device."""
