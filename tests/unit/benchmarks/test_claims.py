"""Claims of the field: their verdicts, the containers that a trace takes, and the page's table."""

import json
from pathlib import Path

import pytest

from benchmarks.claims.batching import containers_needed, waits_of
from benchmarks.claims.claim import CLAIMS, Finding, kept, ratio
from benchmarks.engine.engine import percentile_95
from benchmarks.shared.workloads import Arrivals, equal
from reference.claims import regions

BURST = Arrivals(tuple(equal(6, 0, 64)), (0.0, 0.0, 0.0, 0.0, 10.0, 10.0))


@pytest.mark.parametrize(
    ("claim", "figure", "verdict"),
    [
        ("loading", 9.0, "as said"),
        ("loading", 8.0, "less"),
        ("loading", 18.0, "more"),
        ("ten", 1.5, "as said"),
        ("ten", 9.95, "more"),
        ("bursts", 3.0, ""),
    ],
)
def test_a_figure_is_as_said_within_a_seventh(claim: str, figure: float, verdict: str) -> None:
    assert CLAIMS[claim].verdict(figure) == verdict


def test_a_ratio_is_that_of_medians_with_the_extremes_of_rounds() -> None:
    found = ratio("workers", "one, two", [2.0, 3.0, 10.0], [1.0, 2.0, 4.0])
    assert (found.figure, found.low, found.high) == (1.5, 1.5, 2.5)
    assert (found.shown, found.spread) == ("1.5×", "1.5–2.5 (3)")


def test_requests_wait_for_the_container_that_is_free_first() -> None:
    assert waits_of(BURST, [1.0] * 6, 1) == [1.0, 2.0, 3.0, 4.0, 1.0, 2.0]
    assert waits_of(BURST, [1.0, 3.0, 1.0, 1.0, 1.0, 1.0], 2) == [1.0, 3.0, 2.0, 3.0, 1.0, 1.0]


def test_as_many_containers_are_needed_as_keep_the_waits() -> None:
    seconds = [1.0] * 6
    found = [containers_needed(BURST, seconds, longest) for longest in (100.0, 2.5, 1.0)]
    assert found == [1, 2, 4]
    for number, longest in zip(found, (100.0, 2.5, 1.0), strict=True):
        assert percentile_95(waits_of(BURST, seconds, number)) <= longest


def test_the_page_has_the_newest_result_each_claim_once(tmp_path: Path) -> None:
    assert "No result is there yet" in regions(tmp_path)["claims"]
    findings = [
        Finding(claim="bits", way="computed", compared=f"bytes, {kind}", figure=2.0)
        for kind in ("int8", "int4")
    ]
    for day, which in (("2026-11-27", findings), ("2026-11-20", [])):
        content = {"conditions": {"date": day, "cpu": "some"}, "claims": [*map(kept, which)]}
        (tmp_path / f"claims_cpu_{day}.json").write_text(json.dumps(content))
    table = regions(tmp_path)["claims"]
    assert table.count(CLAIMS["bits"].said) == 1
    assert "| bytes, int4 | computed | **2×** |  | as said |" in table
    assert "results/claims_cpu_2026-11-27.md). Conditions: date 2026-11-27; cpu some." in table
