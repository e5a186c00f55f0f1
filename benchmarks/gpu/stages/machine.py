"""Stage `about`: the GPU, its driver, the versions, the kernels that are chosen, and what the chip can do."""

import math
import shutil
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec

import torch

from benchmarks.gpu.stages.finding import CUDA, DTYPES, Finding, Findings, Setting
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.layers.fused_ops import is_fused

_PACKAGES = ("torch", "triton", "diffusers", "transformers", "huggingface_hub", "numpy", "safetensors")
_QUERY = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,power.limit", "--format=csv,noheader"]
_GIB, _TERA, _GIGA = 2**30, 1e12, 1e9
_REPEATS = 20


def about(setting: Setting) -> Findings:
    for package in _PACKAGES:
        yield Finding(package, version(package) if find_spec(package) else "not installed")
    with setting.cuda():
        yield Finding("GPU", torch.cuda.get_device_name())
        yield Finding("driver, clock, power limit", _driver())
        free, total = torch.cuda.mem_get_info()
        yield Finding("memory, GiB free of all", f"{free / _GIB:.1f} of {total / _GIB:.1f}")
        for name, dtype in DTYPES.items():
            yield Finding(f"attention, {name}", choose_kernel(CUDA, dtype).name)
        yield Finding("fused kernels run", str(is_fused(torch.ones(1, device=CUDA))))
        side, numbers = (64, 2**12) if setting.is_pretended else (8192, 2**30)
        yield Finding("product in bf16, TFLOP/s", round(matmul_ceiling(side) / _TERA, 4))
        yield Finding("copy, GB/s read and written", round(copy_speed(numbers) / _GIGA, 1))


def _driver() -> str:
    if shutil.which(_QUERY[0]) is None:
        return "no nvidia-smi"
    return subprocess.run(_QUERY, capture_output=True, text=True, check=False).stdout.strip()


def matmul_ceiling(side: int) -> float:
    """Return the operations a second of a large product in bf16, the fastest of several runs."""
    left, right = (torch.randn(side, side, device=CUDA, dtype=torch.bfloat16) for _ in range(2))
    return 2 * side**3 / _quickest(lambda: left @ right)


def copy_speed(num_numbers: int) -> float:
    """Return the bytes a second that a copy on the device reads and writes."""
    numbers = torch.randn(num_numbers, device=CUDA, dtype=torch.bfloat16)
    target = torch.empty_like(numbers)
    return 2 * numbers.nbytes / _quickest(lambda: target.copy_(numbers))


def _quickest(work: Callable[[], object]) -> float:
    quickest = math.inf
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(_REPEATS):
            work()
        torch.cuda.synchronize()
        quickest = min(quickest, (time.perf_counter() - start) / _REPEATS)
    return quickest
