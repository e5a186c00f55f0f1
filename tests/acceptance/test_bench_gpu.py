"""The benchmark for a GPU says that it needs one, and plays stages on a pretended one."""

import re
import subprocess

import pytest

from support.benchmark_runs import run_benchmark


def run_without_a_gpu(*options: str) -> subprocess.CompletedProcess[str]:
    return run_benchmark("gpu", *options, CUDA_VISIBLE_DEVICES="")


def test_without_a_gpu_it_says_so_and_measures_nothing() -> None:
    done = run_without_a_gpu()
    assert done.returncode == 2
    assert done.stderr == "the benchmark needs a GPU with CUDA, and torch finds none on this machine\n"
    assert done.stdout == ""


@pytest.mark.slow  # test_gpu_day.py plays it in stages
def test_a_pretended_gpu_is_measured_in_one_way() -> None:
    done = run_without_a_gpu("--pretend", "--only", "eager")
    assert done.returncode == 0, done.stdout
    figures = dict(re.findall(r"\| ([^|]+) \| ([\d.]+) \|", done.stdout))
    for name in ("images a minute", "ms a step of an image", "share of the ceiling"):
        assert float(figures[name]) > 0
