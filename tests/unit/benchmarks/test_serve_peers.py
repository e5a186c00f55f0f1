"""Our server beside others: the figures of rounds, their tables, and those of the page."""

import json
from dataclasses import asdict
from pathlib import Path

from benchmarks.serve.serve_peers import NAIVE, OURS, RATES, SATURATED, PeerFigures, requests_of, tables_of
from diffuserve.bench.figures import Spread
from reference.serve_peers import regions


def figures_of(server: str, rate: str, images_per_second: float) -> PeerFigures:
    return PeerFigures(
        server=server,
        rate=rate,
        offered=4.0,
        images_per_second=images_per_second,
        goodput=1.0,
        latency=Spread.of([0.5, 1.5]),
        cpu_ms=120.4,
        errors={},
        rounds=3,
    )


FIGURES = [
    figures_of(server, rate.name, speed) for server, speed in ((NAIVE, 8.0), (OURS, 13.0)) for rate in RATES
]


def test_each_rate_has_a_table_and_the_saturated_one_ratios() -> None:
    *others, saturated = tables_of(FIGURES).split("\n\n## ")
    assert len(others) == len(RATES) - 1
    assert "1.62×" in saturated
    assert "×" not in "".join(others)
    assert tables_of([figures_of(OURS, SATURATED.name, 13.0)]).count("×") == 0, "there is nothing beside it"


def test_a_seed_changes_prompts_and_noise_but_no_shapes() -> None:
    first, second = (list(requests_of(20, seed)) for seed in (1, 2))
    assert [(each.width, each.height) for each in first] == [(each.width, each.height) for each in second]
    assert [each.prompt for each in first] != [each.prompt for each in second]
    assert all(each.fields["seed"] != other.fields["seed"] for each, other in zip(first, second, strict=True))


def test_the_page_has_all_results_of_the_newest_day(tmp_path: Path) -> None:
    assert "No result is there yet" in regions(tmp_path)["serve-peers"]
    for stem in ("cpu_2026-11-20", "cpu_2026-11-27", "cpu-avx2_2026-11-27"):
        content = {"conditions": {"cpu": stem}, "figures": [asdict(each) for each in FIGURES]}
        (tmp_path / f"serve-peers_{stem}.json").write_text(json.dumps(content))
    page = regions(tmp_path)["serve-peers"]
    assert f"| {OURS} | 13.0 | **1.62×** | 1.45 s | 1.45 s | 1.45 s | 120 ms |" in page
    assert page.count("Conditions: cpu cpu") == 2
    assert "2026-11-20" not in page
