"""A pretended CUDA device, for tests of what runs on a GPU on machines without one.

    with pretend_cuda() as log, Engine.load("tiny-flux", device="cuda") as engine:
        ...

Numbers are computed on the CPU, in the dtypes that the GPU would compute in. Tensors have the device
`cuda:0` and are refused where CUDA refuses them; copies and waits are counted; reading what another stream
may not have written yet, or overwriting what it may still read, raises `StreamRace`. Not pretended are speed,
memory, CUDA's own kernels with their rounding, graphs, several devices, and the pinned memory by which
safetensors reads to a device.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors import safe_open
from torch.utils._device import _device_constructors

from diffuserve.models.machine.host import one_thread
from diffuserve.models.weights import loading as weights
from support.pretend_log import CudaLog, Sync
from support.pretend_streams import ORDER, PretendEvent, PretendStream, StreamRace, on_stream
from support.pretend_tensor import CUDA, EMPTY_KERNELS, PretendTensor

__all__ = ["CudaLog", "PretendTensor", "StreamRace", "Sync", "pretend_cuda", "pretend_cuda_guard"]

_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"  # c10::impl::device_guard_impl_registry
_CPU, _CUDA = 0, 1  # c10::DeviceType
_GIB = 1 << 30


@contextmanager
def pretend_cuda(*, total_bytes: int = 80 * _GIB, capability: tuple[int, int] = (9, 0)) -> Iterator[CudaLog]:
    """Have torch find one CUDA device within the block, and yield the log of its work.

    Raise `RuntimeError` where a real one is. Engines that are begun within the block end within it.
    """
    if torch.cuda.is_available():
        raise RuntimeError("this machine has a GPU: there is nothing to pretend")
    # From its first use on `with torch.device(...)` remembers which functions make tensors: torch's own must
    # be found there, not those that stand in for them here, or it is deaf to `torch.tensor` ever after.
    _device_constructors()
    library = torch.library.Library("aten", "IMPL")
    with ExitStack() as stack:
        stack.callback(library._destroy)
        stack.enter_context(one_thread())  # faster for small operations, and for tests that run beside
        stack.enter_context(pretend_cuda_guard())
        stack.enter_context(patch.multiple(torch.cuda, **_stubs(total_bytes, capability)))
        stack.enter_context(patch.object(torch, "tensor", _made_on_the_host(torch.tensor)))
        stack.enter_context(patch.object(torch, "as_tensor", _made_on_the_host(torch.as_tensor)))
        stack.enter_context(
            patch.multiple(torch.Tensor, to=_moved_to_an_index, cuda=_moved_to_cuda, pin_memory=_pinned)
        )
        stack.enter_context(patch.object(weights, "safe_open", _Reader))
        stack.enter_context(_new_parameters_on_conversion())
        for name, kernel in EMPTY_KERNELS.items():
            library.impl(name, kernel, "CUDA")
        ORDER.log.clear()
        yield ORDER.log


@contextmanager
def pretend_cuda_guard() -> Iterator[None]:
    """Have torch's C++ side accept the CUDA device, which a build without CUDA does not know.

    It asks a registry of device guards, and gets the one of the CPU here, which does nothing.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libc10.so"))
    registry = (ctypes.c_void_p * 2).in_dll(library, _REGISTRY)
    before = registry[_CUDA]
    registry[_CUDA] = registry[_CPU]
    try:
        with patch.object(torch.cuda, "_lazy_init", lambda: None):
            yield
    finally:
        registry[_CUDA] = before


def _stubs(total_bytes: int, capability: tuple[int, int]) -> dict[str, Any]:
    return {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda _device: None,
        "device": nullcontext,
        "get_device_name": lambda _device=None: "pretended GPU",
        "get_device_capability": lambda _device=None: capability,
        "mem_get_info": lambda _device=None: (total_bytes // 2, total_bytes),
        "memory_allocated": lambda _device=None: 0,
        "memory_reserved": lambda _device=None: 0,
        "max_memory_allocated": lambda _device=None: 0,
        "reset_peak_memory_stats": lambda _device=None: None,
        "empty_cache": lambda: None,
        "synchronize": _synchronize,
        "current_stream": lambda _device=None: ORDER.current(),
        "Stream": PretendStream,
        "Event": PretendEvent,
        "stream": on_stream,
    }


def _made_on_the_host(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return `make`, which hides its copy to the device from all that could see it, with a plain copy."""

    def made(data: Any, *, device: Any = None, **options: Any) -> torch.Tensor:
        tensor = make(data, **options)
        return tensor if device is None else tensor.to(device)

    return made


_move: Callable[..., torch.Tensor] = torch.Tensor.to


def _moved_to_an_index(tensor: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    """Stand in for `Tensor.to`, which asks the guard what `cuda` is, and is told the CPU."""
    return _move(
        tensor, *map(_with_index, args), **{name: _with_index(value) for name, value in options.items()}
    )


def _moved_to_cuda(tensor: torch.Tensor, device: Any = None, non_blocking: bool = False) -> torch.Tensor:
    return tensor.to("cuda" if device is None else device, non_blocking=non_blocking)


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _with_index(value: Any) -> Any:
    is_bare = isinstance(value, str | torch.device) and str(value) == "cuda"
    return CUDA if is_bare else value


class _Reader:
    """Reads a file of tensors to the pretended device; safetensors itself would ask for pinned memory."""

    def __init__(self, file: Path, framework: str, device: str | None = None) -> None:
        self._reader: Any = safe_open(file, framework=framework)
        self._device = device

    def __enter__(self) -> "_Reader":
        self._reader.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._reader.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def get_tensor(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._reader.get_tensor(name)
        return tensor if self._device is None else tensor.to(self._device)


def _synchronize(_device: Any = None) -> None:
    ORDER.log.sync("device")
    ORDER.finish_all()


@contextmanager
def _new_parameters_on_conversion() -> Iterator[None]:
    """Have `Module.to` replace parameters: the data of a tensor that wraps another cannot be exchanged."""
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        yield
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)
