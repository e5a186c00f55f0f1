"""Metrics of GPUs, read from a fake of NVML: no GPU is needed."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from diffuserve.telemetry.gpus import GpuReader
from diffuserve.telemetry.metrics import GpuSeries


class FakeNvml(ModuleType):
    """Fake of `pynvml` with two GPUs, of which the second does not tell its utilization."""

    class NVMLError(Exception):
        pass

    def __init__(self, has_driver: bool = True) -> None:
        super().__init__("pynvml", "A fake of NVML for tests.")
        self.has_driver = has_driver

    def nvmlInit(self) -> None:
        if not self.has_driver:
            raise self.NVMLError("Library Not Found")

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetMemoryInfo(self, device: int) -> SimpleNamespace:
        return SimpleNamespace(used=1000 + device, total=4000)

    def nvmlDeviceGetUtilizationRates(self, device: int) -> SimpleNamespace:
        if device == 1:
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(gpu=70)


def registry_with(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml | None) -> CollectorRegistry:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)  # None: not installed
    registry = CollectorRegistry()
    registry.register(GpuSeries(GpuReader().read))
    return registry


def test_each_gpu_has_its_series(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = registry_with(monkeypatch, FakeNvml())
    assert registry.get_sample_value("gpu_memory_used_bytes", {"gpu_id": "0"}) == 1000
    assert registry.get_sample_value("gpu_memory_used_bytes", {"gpu_id": "1"}) == 1001
    assert registry.get_sample_value("gpu_memory_total_bytes", {"gpu_id": "1"}) == 4000
    assert registry.get_sample_value("gpu_utilization_percent", {"gpu_id": "0"}) == 70


def test_a_value_that_the_driver_does_not_tell_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = registry_with(monkeypatch, FakeNvml())
    assert registry.get_sample_value("gpu_utilization_percent", {"gpu_id": "1"}) is None


@pytest.mark.parametrize("nvml", [None, FakeNvml(has_driver=False)], ids=["no package", "no driver"])
def test_nothing_is_told_without_a_gpu(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml | None) -> None:
    assert list(registry_with(monkeypatch, nvml).collect()) == []
