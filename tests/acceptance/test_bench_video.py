"""The benchmark of clips runs: its sides, its server and its figures; what they are worth is not asked."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.waiting import HANG_SECONDS

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "bench_video.py"


@pytest.mark.slow
def test_all_scenarios_give_figures_of_the_same_frames() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--quick"],
        capture_output=True,
        text=True,
        timeout=3 * HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ratios = [float(ratio) for ratio in re.findall(r"\*\*([\d.]+)×\*\*", done.stdout)]
    assert len(ratios) == 3
    assert all(ratio > 0 for ratio in ratios)
    likeness = re.search(r"least likeness of a frame: ([\d.]+) dB", done.stdout)
    assert likeness is not None
    assert float(likeness[1]) > 25, "in bf16; the tests of parity compare in float32"
