"""The devices of this machine, their dtypes and rough speed."""

import torch
from torch import Tensor

from diffuserve.domain.errors import DeviceUnavailable
from diffuserve.domain.models.dtypes import find_dtype
from diffuserve.models.machine.cpu_products import cpu_has_bf16
from diffuserve.models.machine.hardware import check_cuda_index, check_dtype, parse_device


def choose_device(name: str | None) -> torch.device:
    """Return the device of this name; `None` means the first CUDA device, else the CPU.

    Raise `DeviceUnavailable` for a name that is unknown or not on this machine.
    """
    if name is None:
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    kind, index = parse_device(name)
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise DeviceUnavailable(f"device={name!r}: this machine or this torch build has no CUDA; try 'cpu'")
    check_cuda_index(name, index, torch.cuda.device_count())
    return torch.device("cuda", index)


def parse_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """Return the dtype of this name; `None` stays `None`. Raise `DeviceUnavailable` for an unknown one."""
    if dtype is None:
        return None
    check_dtype(str(dtype))
    parsed: torch.dtype = getattr(torch, str(find_dtype(str(dtype))))
    return parsed


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def default_dtype(
    checkpoint: torch.dtype, device: torch.device, half: torch.dtype = torch.float32
) -> torch.dtype:
    """Return the checkpoint's dtype, but `half` in place of float32 on a GPU.

    On a CPU it is float32, unless the checkpoint's is bf16 and has instructions there.
    """
    if device.type == "cuda":
        return half if checkpoint == torch.float32 else checkpoint
    return checkpoint if checkpoint == torch.bfloat16 and cpu_has_bf16() else torch.float32


def is_emulated(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether a device computes products of this dtype without instructions for them."""
    return device.type == "cpu" and dtype == torch.bfloat16 and not cpu_has_bf16()


def check_deterministic(device: torch.device, has_ranks: bool) -> None:
    """Raise `DeviceUnavailable` where no pipeline has a deterministic mode."""
    if device.type != "cpu" or has_ranks:
        raise DeviceUnavailable(f"device={str(device)!r}: deterministic mode runs on one CPU only")


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the CPU on a device, in the order of the current stream's work.

    Nothing waits for the work before it: that needs memory which the device can read by itself, pinned.
    """
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def flops_per_second(device: torch.device, dtype: torch.dtype) -> float:
    """Return a round figure to start the cost model from; it is refitted on the first live steps."""
    if device.type == "cuda":
        return 4e14 if dtype != torch.float32 else 4e13
    per_core = 2e11 if dtype == torch.bfloat16 else 6e10
    return per_core * torch.get_num_threads()
