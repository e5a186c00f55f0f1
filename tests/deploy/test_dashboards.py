"""Dashboards and alerts ask for what exists, and a Prometheus that scrapes a live server has answers."""

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from prometheus_client.metrics import MetricWrapperBase

from diffuserve.telemetry.metrics import ControlMetrics, GpuSeries, WorkerSeries
from support.monitored_cluster import MonitoredCluster, monitored_cluster
from support.monitoring import FOLDER, alerts, query, skip_without
from support.waiting import block_until

ROOT = Path(__file__).parents[2]
BOARDS = sorted((FOLDER / "dashboards").glob("*.json"))
OF_TARGETS = {"job", "instance"}
NEEDS_A_GPU = {"workers: Utilization", "workers: Memory"}


def filled_in(expression: str) -> str:
    """Return an expression with values for the variables of Grafana."""
    values = {"$__rate_interval": "5m", "$price": "2", "$model": "tiny-flux"}
    for variable, value in values.items():
        expression = expression.replace(variable, value)
    assert "$" not in expression, expression
    return expression


def panels() -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the expressions of every panel."""
    for path in BOARDS:
        for panel in every_panel(json.loads(path.read_text(encoding="utf-8"))):
            yield f"{path.stem}: {panel['title']}", [filled_in(target["expr"]) for target in panel["targets"]]


def every_panel(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in board["panels"]:
        yield from every_panel(panel) if panel["type"] == "row" else [panel]


def expressions() -> list[str]:
    asked = [expression for _, queries in panels() for expression in queries]
    return asked + [rule["expr"] for rule in alerts().values()]


def known_series() -> dict[str, set[str]]:
    """Return the labels of every series that a control plane or a worker may have, by name."""
    known: dict[str, set[str]] = {"up": set()}
    declared = [*vars(ControlMetrics()).values(), *vars(WorkerSeries()).values()]
    for metric in declared:
        if isinstance(metric, MetricWrapperBase):
            [family], labels = metric.collect(), set(metric._labelnames)
            if family.type == "histogram":
                known |= {f"{family.name}_{part}": labels for part in ("sum", "count")}
                known[f"{family.name}_bucket"] = labels | {"le"}
            else:
                name = family.name + ("_total" if family.type == "counter" else "")
                known[name] = known.get(name, set()) | labels
    return known | {family.name: {"gpu_id"} for family in GpuSeries(list).describe()}


def problems(expression: str, known: dict[str, set[str]]) -> list[str]:
    """Return the metrics and labels of an expression that do not exist."""
    found: list[str] = []

    def visit(node: Any) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            name, used = str(node.name), {matcher.name for matcher in node.matchers.matchers}
            found.extend([name] if name not in known else used - known[name] - OF_TARGETS)
        return True

    promql_parser.walk(promql_parser.parse(expression), visit)
    grouped = re.findall(r"\bby \(([^)]*)\)", expression)
    names = {name for group in grouped for name in re.split(r",\s*", group)}
    labels = set().union(*(labels for name, labels in known.items() if name in expression))
    return found + sorted(names - labels - OF_TARGETS)


def test_the_checker_finds_what_does_not_exist() -> None:
    known = {"a_total": {"model"}}
    assert problems('sum by (model) (rate(a_total{model="m",job="x"}[5m]))', known) == []
    assert problems("sum(rate(b_total[5m]))", known) == ["b_total"]
    assert problems('a_total{tenant="ada"}', known) == ["tenant"]
    assert problems("sum by (tenant) (a_total)", known) == ["tenant"]
    with pytest.raises(ValueError, match="parenthesis"):
        problems("sum(rate(a_total[5m])) by model)", known)


def test_every_expression_names_metrics_and_labels_that_exist() -> None:
    known = known_series()
    assert len(expressions()) > 60
    assert {text: wrong for text in expressions() if (wrong := problems(text, known))} == {}


def test_the_dashboards_are_those_that_the_script_makes() -> None:
    assert [path.stem for path in BOARDS] == ["cost", "model", "overview", "queue", "workers"]
    script = [sys.executable, str(ROOT / "scripts" / "make_dashboards.py"), "--check"]
    assert subprocess.run(script, check=False).returncode == 0, "run scripts/make_dashboards.py"


def test_the_document_lists_the_dashboards() -> None:
    page = (ROOT / "docs" / "how-to" / "monitor.md").read_text(encoding="utf-8")
    titles = [json.loads(path.read_text(encoding="utf-8"))["title"] for path in BOARDS]
    assert {title for title in titles if f"| {title.split(': ')[1].lower()} |" not in page.lower()} == set()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MonitoredCluster]:
    skip_without("prometheus")
    with monitored_cluster(tmp_path) as cluster:
        yield cluster


@pytest.mark.slow
def test_every_panel_has_data_after_a_short_load(cluster: MonitoredCluster) -> None:
    """Draw twice: a rate needs a series before and after."""
    cluster.draw(3)
    cluster.draw(6)

    def has_data(expression: str) -> bool:
        answer = query(cluster.prometheus, expression)
        return any(not math.isnan(float(series["value"][1])) for series in answer)

    def without_data() -> set[str]:
        return {name for name, queries in panels() if not all(map(has_data, queries))}

    try:
        block_until(lambda: without_data() == NEEDS_A_GPU)  # heartbeats and scrapes come a little later
    except TimeoutError:
        assert without_data() == NEEDS_A_GPU
