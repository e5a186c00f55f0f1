"""Readings of a machine's GPUs by NVML, which needs `nvidia-ml-py` and NVIDIA's driver."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class GpuReading:
    """State of one GPU; a value that its driver does not tell is None."""

    gpu_id: str
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    utilization_percent: int | None


class GpuReader:
    """Reads all GPUs of the machine. It opens NVML with the first read."""

    def read(self) -> list[GpuReading]:
        """Return a reading for each GPU; none without GPUs, their driver, or `nvidia-ml-py`."""
        nvml = self._nvml
        if nvml is None:
            return []
        count = _told(nvml, nvml.nvmlDeviceGetCount) or 0
        return [_reading(nvml, index) for index in range(count)]

    @cached_property
    def _nvml(self) -> Any:
        try:
            import pynvml
        except ModuleNotFoundError:
            return None
        return pynvml if _told(pynvml, lambda: (pynvml.nvmlInit(), True)) else None


def _reading(nvml: Any, index: int) -> GpuReading:
    def device() -> Any:
        return nvml.nvmlDeviceGetHandleByIndex(index)

    memory = _told(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(device()))
    used, total = (None, None) if memory is None else (memory.used, memory.total)
    utilization = _told(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(device()).gpu)
    return GpuReading(str(index), used, total, utilization)


def _told(nvml: Any, call: Callable[[], Any]) -> Any:
    """Return what NVML tells, or None if it cannot: without a driver, or in a part of a GPU."""
    with suppress(nvml.NVMLError):
        return call()
    return None
