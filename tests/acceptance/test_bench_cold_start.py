"""The benchmark of cold starts runs, once and on the bundled model; what its figures are is not asked."""

import re

import pytest

from benchmarks.start.marks import waterfall
from support.benchmark_runs import run_quickly


@pytest.mark.slow
def test_every_side_draws_an_image_with_the_page_cache_warm_and_cold() -> None:
    printed = run_quickly("cold-start")
    sides = re.findall(r"^### ([^:]+): [\d.]+ times as fast as stock", printed, re.MULTILINE)
    assert len(sides) == 12
    assert len(set(sides)) == 6
    sums = [float(total) for total in re.findall(r"^sum +([\d.]+) s", printed, re.MULTILINE)]
    assert len(sums) == 12
    assert all(total > 0 for total in sums)
    shares = re.findall(r"^- tiny-flux, ([a-z ]+): (\d+)%$", printed, re.MULTILINE)
    assert [way for way, _ in shares] == ["own files", "prepared copy"]
    assert all(0 < int(share) < 100 for _, share in shares)


def test_a_waterfall_shows_each_phase_where_it_lies() -> None:
    first, second, total = waterfall({"a": 1.0, "b": 4.0}, 4)
    assert first.endswith("1.00 s  █")
    assert second.endswith("3.00 s   ███")
    assert total.endswith("4.00 s")
