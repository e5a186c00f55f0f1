"""Grafana's own panels draw every dashboard from a Prometheus that scraped a server under load."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, Response

from draw_dashboards import BOARDS, PanelsMissing, Source, Window, built, drawing, show, with_few_colors
from support.browser import write_screenshot
from support.monitored_cluster import MonitoredCluster, monitored_cluster
from support.monitoring import skip_without
from support.waiting import HANG_SECONDS, block_until

NO_GPU = "No GPU reports: workers tell of theirs with diffuserve[gpu-metrics]"
WITHOUT_DATA = {"Utilization": NO_GPU, "Memory": NO_GPU}
_SCRAPE_SECONDS = 2
_NUMBER = r"\d+(\.\d+)?"
LABELS = {
    "short": rf"{_NUMBER}( K)?",
    "suffix:/s": rf"{_NUMBER} /s",
    "reqps": rf"{_NUMBER}(K)? req/s",
    "s": rf"{_NUMBER} (µs|ms|s|mins?|hours?)",
    "percentunit": rf"{_NUMBER}%",
}
# Pairs of legend entries that overlap, and entries that are outside their panel or need scrolling.
_BAD_LEGENDS = """(section) => {
  const entries = [...section.querySelectorAll('[data-testid^="data-testid VizLegend series"]')];
  const boxes = entries.map((entry) => entry.getBoundingClientRect());
  const outer = section.getBoundingClientRect();
  const hidden = boxes.filter((box) => box.right > outer.right || box.bottom > outer.bottom);
  const overlapping = boxes.filter((a, i) => boxes.some((b, j) => i < j && a.left < b.right - 1
    && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1));
  const scrolled = [...section.querySelectorAll("div")].filter((part) =>
    part.scrollHeight > part.clientHeight + 1 && getComputedStyle(part).overflowY !== "visible");
  return hidden.length + overlapping.length + scrolled.length;
}"""


@pytest.fixture(scope="module")
def panels() -> Path:
    """The folder of Grafana's panels, bundled."""
    if shutil.which("npm") is None:
        pytest.skip("no npm on this machine: apt-get install npm")
    try:
        return built()
    except PanelsMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def cluster(panels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MonitoredCluster]:
    """A cluster of two models that has drawn twice: a rate needs a series before and after."""
    skip_without("prometheus")
    with monitored_cluster(
        tmp_path_factory.mktemp("cluster"), ("tiny-flux", "tiny-sd"), _SCRAPE_SECONDS
    ) as cluster:
        cluster.draw(4)
        cluster.draw(12)
        yield cluster


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    page.set_default_timeout(HANG_SECONDS * 1000)
    yield page
    page.close()


def _drawing(path: Path, cluster: MonitoredCluster) -> dict[str, Any]:
    source = Source(cluster.prometheus, _SCRAPE_SECONDS, {"model": "tiny-flux", "price": "2"})
    return drawing(json.loads(path.read_text("utf-8")), source, Window.last(180, step=2))


def _values(series: list[dict[str, Any]]) -> list[float]:
    return [value for line in series for _, value in line["points"] if value is not None]


def _empty(drawing: dict[str, Any]) -> set[str]:
    """Return the titles of panels without a number."""
    pairs = zip(drawing["dashboard"]["panels"], drawing["answers"], strict=True)
    return {panel["title"] for panel, series in pairs if panel["type"] != "row" and not _values(series)}


@pytest.mark.slow
@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_every_panel_of_a_dashboard_is_drawn_and_can_be_read(
    path: Path, cluster: MonitoredCluster, panels: Path, page: Page
) -> None:
    block_until(lambda: _empty(_drawing(path, cluster)) <= WITHOUT_DATA.keys())  # heartbeats come later
    drawing, errors = _drawing(path, cluster), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("response", lambda response: errors.append(response.url) if _is_missing(response) else None)
    show(page, drawing, panels)
    write_screenshot(page, f"dashboard-{path.stem}")
    assert errors == []
    for index, (panel, series) in enumerate(
        zip(drawing["dashboard"]["panels"], drawing["answers"], strict=True)
    ):
        if panel["type"] != "row":
            _assert_readable(page, index, panel, series)


def _is_missing(response: Response) -> bool:
    return not response.ok and "/fonts/" not in response.url


def _assert_readable(page: Page, index: int, panel: dict[str, Any], series: list[dict[str, Any]]) -> None:
    title, section = panel["title"], page.locator(f'[data-panel="{index}"]')
    text = section.inner_text()
    assert title in text
    if not _values(series):
        assert WITHOUT_DATA[title] in text
        return
    axis = page.evaluate(f"window.drawn[{index}]")
    assert axis["min"] == 0, title
    if not any(_values(series)):
        assert axis["max"] <= 1, title
    pattern = LABELS[panel["fieldConfig"]["defaults"]["unit"]]
    wrong = [label for label in axis["labels"] if label and not re.fullmatch(pattern, label)]
    assert wrong == [], title
    assert set(axis["labels"]) - {None, ""}, title
    assert {line["name"] for line in series} <= set(text.split("\n")), title
    assert section.evaluate(_BAD_LEGENDS) == 0, title
    assert not re.search("NaN|undefined", text), title


def test_variables_and_intervals_are_those_that_grafana_would_fill_in() -> None:
    source = Source("http://nowhere", scrape_seconds=15, variables={"model": "m", "price": "2"})
    assert source.filled_in('rate(a{model="$model"}[$__rate_interval]) * $price', step=10) == (
        'rate(a{model="m"}[60s]) * 2'
    )
    assert source.filled_in("$__rate_interval", step=120) == "135s"


def test_a_picture_of_few_colors_keeps_those_of_lines() -> None:
    white, canvas, grid, line = (255, 255, 255), (244, 245, 245), (233, 233, 235), (224, 47, 68)
    picture = Image.new("RGB", (64, 64), white)
    for number, color in enumerate([canvas] * 9 + [grid] * 6 + [line] * 3):
        picture.paste(color, (0, number, 64, number + 1))
    picture.paste((239, 150, 160), (0, 20, 64, 21))  # the edge of a line
    few = with_few_colors(picture)
    colors = {color for _, color in few.getcolors() or ()}
    assert {white, canvas, grid, line} <= colors
