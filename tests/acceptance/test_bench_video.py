"""The benchmark of clips runs: its sides, its server and its figures; what they are worth is not asked."""

import re

import pytest

from support.benchmark_runs import run_quickly


@pytest.mark.slow
def test_all_scenarios_give_figures_of_the_same_frames() -> None:
    printed = run_quickly("video")
    ratios = [float(ratio) for ratio in re.findall(r"\*\*([\d.]+)×\*\*", printed)]
    assert len(ratios) == 4
    assert all(ratio > 0 for ratio in ratios)
    likeness = re.search(r"least likeness of a frame: ([\d.]+) dB", printed)
    assert likeness is not None
    assert float(likeness[1]) > 25, "in bf16; the tests of parity compare in float32"
