"""Devices and dtypes by name, checked without torch, whose import alone takes seconds.

What remains for torch is whether its CUDA works with the driver that is found here.
"""

import ctypes
import os
import re
import runpy
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from diffuserve.domain.errors import DeviceUnavailable
from diffuserve.domain.models.dtypes import DTYPES, find_dtype
from diffuserve.domain.text.nearest import did_you_mean

_DEVICE = re.compile(r"(cpu|cuda)(?::(\d{1,4}))?")
_DRIVER = "libcuda.so.1"
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def check_dtype(name: str | None) -> None:
    """Raise `DeviceUnavailable` for a dtype of another name; `None` is the model's own."""
    if name is not None and find_dtype(name) is None:
        known = f"{', '.join(DTYPES)}, or for short bf16, fp16, fp32"
        raise DeviceUnavailable(f"dtype={name!r}: must be one of {known}{did_you_mean(name, DTYPES)}")


def parse_device(name: str) -> tuple[str, int]:
    """Return kind and index of a device such as `cuda:1`. Raise `DeviceUnavailable` for another name."""
    match = _DEVICE.fullmatch(name)
    if match is None:
        raise DeviceUnavailable(f"device={name!r}: must be cpu, cuda, or cuda:N for one of several GPUs")
    return match[1], int(match[2] or 0)


def check_device(name: str | None) -> None:
    """Raise `DeviceUnavailable` for a device that this machine or this build of torch lacks.

    `None` is the best device of the machine, and always there.
    """
    if name is None:
        return
    kind, index = parse_device(name)
    if kind == "cpu" or torch_build("hip"):  # AMD's GPUs have the same name, and another driver
        return
    if torch_build("cuda") is None:
        raise DeviceUnavailable(
            f"device={name!r}: this torch is built without CUDA; install one with it as "
            "https://pytorch.org/get-started shows, or give cpu"
        )
    check_cuda_index(name, index, count_cuda_devices())


def check_num_gpus(name: str | None, num_gpus: int) -> None:
    """Raise `DeviceUnavailable` if a worker of several GPUs is to have more of them than there are."""
    if num_gpus == 1 or is_cpu(name) or torch_build("hip"):
        return
    count = count_cuda_devices()
    if num_gpus > count:
        raise DeviceUnavailable(f"gpus={num_gpus}: this machine has {count} CUDA device(s)")


def is_cpu(name: str | None) -> bool:
    """Return whether a device that was checked is the CPU; `None` is, where there is no GPU."""
    if name is not None:
        return parse_device(name)[0] == "cpu"
    return not torch_build("hip") and not (torch_build("cuda") and count_cuda_devices())


def check_cuda_index(name: str, index: int, count: int) -> None:
    """Raise `DeviceUnavailable` if there are no more than `index` CUDA devices."""
    if not count:
        raise DeviceUnavailable(
            f"device={name!r}: no GPU with a CUDA driver is on this machine, as `nvidia-smi` would show; "
            "give cpu"
        )
    if index >= count:
        raise DeviceUnavailable(f"device={name!r}: this machine has {count} CUDA device(s), numbered from 0")


def torch_build(platform: Literal["cuda", "hip"]) -> str | None:
    """Return the version of CUDA or of HIP that torch is built for; `None` if it is not, or is not there."""
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        return None
    version: str | None = runpy.run_path(str(Path(torch.origin).with_name("version.py"))).get(platform)
    return version


def count_cuda_devices() -> int:
    """Return the number of devices that the CUDA driver shows to this process; 0 without a driver."""
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return 0
    count = ctypes.c_int(0)
    has_failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return 0 if has_failed else count.value


def visible_device(number: int) -> str:
    """Return how the CUDA driver names device `number` of those that it shows to this process.

    Raise `DeviceUnavailable` if `CUDA_VISIBLE_DEVICES` names fewer.
    """
    visible = os.environ.get(_VISIBLE)  # noqa: TID251 (the driver's own, by which others share out GPUs)
    if visible is None:
        return str(number)
    names = [name.strip() for name in visible.split(",")]
    check_cuda_index(f"cuda:{number}", number, len(names))
    return names[number]


def see_only(device: str) -> None:
    """Have the CUDA driver show this process, and those that it starts, one device: `cuda:0`.

    Only what is called before the driver's first use has an effect.
    """
    os.environ[_VISIBLE] = device  # noqa: TID251 (the driver has no other interface)
