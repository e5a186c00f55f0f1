"""The benchmark of offload measures every mode and computes large models; its seconds are not asked."""

import re

import pytest

from diffuserve.domain.models.offload import Offload
from support.benchmark_runs import run_quickly


@pytest.mark.slow
def test_every_mode_is_measured_and_computed() -> None:
    printed = run_quickly("offload")
    computed = re.findall(r"^\| (FLUX.1|SDXL|Wan 2.2 A14B) \| (\w+) \| ([\d.]+) \|", printed, re.MULTILINE)
    sizes = {(model, mode): float(gigabytes) for model, mode, gigabytes in computed}
    for model in ("FLUX.1", "SDXL", "Wan 2.2 A14B"):
        order = [sizes[model, mode] for mode in ("layers", "model", "text", "none")]
        assert order == sorted(order)
    assert re.findall(r"^\| (none|text|model|layers) \| [\d.]+ \|", printed, re.MULTILINE) == list(Offload)
