"""The benchmark for a GPU says that it needs one, and measures a pretended one; its figures are not asked."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.waiting import HANG_SECONDS

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "bench_gpu.py"


def run_without_a_gpu(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *options],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=3 * HANG_SECONDS,
        check=False,
    )


def test_without_a_gpu_it_says_so_and_measures_nothing() -> None:
    done = run_without_a_gpu()
    assert done.returncode == 2
    assert done.stderr == "bench-gpu needs a GPU with CUDA, and torch finds none on this machine\n"
    assert done.stdout == ""


@pytest.mark.slow
def test_a_pretended_gpu_is_measured() -> None:
    done = run_without_a_gpu("--pretend")
    assert done.returncode == 0, done.stderr
    parity = dict(re.findall(r"^\| (float32|bfloat16) \| ([\d.]+) \|$", done.stdout, re.MULTILINE))
    assert float(parity["float32"]) > 60
    assert float(parity["bfloat16"]) > 35
    rows = re.findall(
        r"^\| (as it is|in fp8) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", done.stdout, re.MULTILINE
    )
    assert [way for way, *_ in rows] == ["as it is", "in fp8"]
    assert all(float(figure) > 0 for _, *figures in rows for figure in figures)
    assert "TFLOP/s" in done.stdout
