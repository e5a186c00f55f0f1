"""Devices and dtypes that are refused without torch."""

import pytest
import torch

from diffuserve.domain.errors import DeviceUnavailable
from diffuserve.models.machine import hardware
from diffuserve.models.machine.hardware import check_device, check_dtype, check_num_gpus, is_cpu, torch_build


@pytest.fixture
def with_gpus(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A torch that is built for CUDA, on a machine with as many devices as the parameter says."""
    monkeypatch.setattr(hardware, "torch_build", {"cuda": "13.0", "hip": None}.get)
    monkeypatch.setattr(hardware, "count_cuda_devices", lambda: request.param)


def test_the_build_of_torch_is_read_without_importing_it() -> None:
    assert torch_build("cuda") == torch.version.cuda
    assert torch_build("hip") == torch.version.hip


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpu", "device='gpu': must be cpu, cuda, or cuda:N"),
        ("cuda:x", "must be cpu, cuda, or cuda:N"),
        ("mps", "must be cpu, cuda, or cuda:N"),
        ("", "must be cpu, cuda, or cuda:N"),
    ],
)
def test_an_unknown_device_is_refused(name: str, message: str) -> None:
    with pytest.raises(DeviceUnavailable, match=message):
        check_device(name)


def test_an_unknown_dtype_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(DeviceUnavailable, match="did you mean 'float16'"):
        check_dtype("flot16")
    check_dtype("bfloat16")
    check_dtype(None)


@pytest.mark.parametrize("with_gpus", [0], indirect=True)
@pytest.mark.usefixtures("with_gpus")
def test_without_a_driver_there_is_no_cuda() -> None:
    with pytest.raises(DeviceUnavailable, match="device='cuda': no GPU with a CUDA driver"):
        check_device("cuda")
    assert is_cpu(None)
    check_num_gpus(None, 8)  # ranks on a CPU


@pytest.mark.parametrize("with_gpus", [2], indirect=True)
@pytest.mark.usefixtures("with_gpus")
def test_devices_are_numbered_from_zero() -> None:
    check_device("cuda:1")
    with pytest.raises(DeviceUnavailable, match=r"device='cuda:2': this machine has 2 CUDA device\(s\)"):
        check_device("cuda:2")
    assert not is_cpu(None)
    assert is_cpu("cpu:0")
    with pytest.raises(DeviceUnavailable, match=r"gpus=3: this machine has 2 CUDA device\(s\)"):
        check_num_gpus(None, 3)


def test_a_torch_without_cuda_is_told_from_a_machine_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "torch_build", lambda _: None)
    with pytest.raises(DeviceUnavailable, match="built without CUDA"):
        check_device("cuda")


def test_a_driver_that_is_missing_counts_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_DRIVER", "libnosuchdriver.so.1")
    assert hardware.count_cuda_devices() == 0
