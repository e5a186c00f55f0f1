"""Draws the dashboards with Grafana's own panels, from the figures of a Prometheus, without Grafana.

    python scripts/draw_dashboards.py http://localhost:9090 [--minutes 60] [--to out/dashboards]
    python scripts/draw_dashboards.py --minutes 15    # of a server that it starts and keeps busy as long

The panels are those of `@grafana/ui`, which npm fetches by the lock in `scripts/grafana` and Chromium draws.
What Grafana's server and its Prometheus data source do besides is done here, as far as these dashboards use
it: values for variables, intervals of rates, names of series. No variable is queried, nothing is transformed.
"""

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
from PIL import Image
from playwright.sync_api import Page, Route, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))

from support.monitored_cluster import monitored_cluster  # noqa: E402

BOARDS = sorted((ROOT / "deploy" / "monitoring" / "dashboards").glob("*.json"))
SOURCES = ROOT / "scripts" / "grafana"
_BUILT = ROOT / "out" / "grafana"
_ORIGIN = "http://panels.invalid/"  # answered here: nothing leaves the browser
_ICONS = Path("node_modules/@grafana/ui/dist")
_WIDTH = 1500
_POINTS = 40  # of a chart: more hide each other
_COLORS = 16
_NUM_GROUNDS = 3  # the panels', the page's and the grid's, which differ little
_APART = 60  # of 255, in one of red, green and blue
_SCRAPE_SECONDS = 5  # of the own Prometheus: a busy machine may not respond within less
_NPM_SECONDS = 600
# Grafana draws in its font Inter, and measures in it: both must fall back to the same one.
_PAGE = """<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="panels.css">
<style>@font-face { font-family: Inter; src: local("Inter"), local("Liberation Sans") }</style>
<link rel="icon" href="data:,"><body style="margin: 0"><div id="root" style="font: 14px Inter"></div>
<script>window.drawing = {drawing}</script><script src="panels.js"></script>"""

Series = dict[str, Any]
"""A line of a panel: its `name`, and its `points`, times and numbers or `None`, and the `step` between."""


class PanelsMissing(RuntimeError):
    """npm is not there, or cannot fetch the packages of the panels."""


@dataclass(frozen=True)
class Window:
    """The time that dashboards show, in seconds since the epoch, with a point every `step` seconds."""

    start: float
    end: float
    step: int

    @classmethod
    def last(cls, seconds: float, step: int) -> "Window":
        """Return the window that ends now."""
        end = time.time()
        return cls(end - seconds, end, step)


@dataclass(frozen=True)
class Source:
    """A Prometheus, how often it scrapes, in seconds, and the values of the dashboards' variables."""

    url: str
    scrape_seconds: int
    variables: dict[str, str]

    def answers(self, panel: dict[str, Any], window: Window) -> list[Series]:
        """Return the series of a panel. Raise `ValueError` with what Prometheus says against a query."""
        minutes = int(panel.get("interval", "0m").removesuffix("m"))
        step = max(window.step, minutes * 60)
        targets = panel.get("targets", [])
        return [series for target in targets for series in self._answer(target, window, step)]

    def _answer(self, target: dict[str, str], window: Window, step: int) -> list[Series]:
        expression = self.filled_in(target["expr"], step)
        start, end = (at // step * step for at in (window.start, window.end))  # as Grafana aligns them
        asked: dict[str, str | float] = {"query": expression, "start": start, "end": end, "step": step}
        answer = httpx.get(f"{self.url}/api/v1/query_range", params=asked, trust_env=False, timeout=60).json()
        if answer["status"] != "success":
            raise ValueError(f"Prometheus refuses {expression}: {answer['error']}")
        return [_series(target["legendFormat"], series, step) for series in answer["data"]["result"]]

    def filled_in(self, expression: str, step: int) -> str:
        """Return an expression with values for the variables; the interval of rates is Grafana's."""
        interval = max(step + self.scrape_seconds, 4 * self.scrape_seconds)
        for name, value in {"__rate_interval": f"{interval}s", **self.variables}.items():
            expression = expression.replace(f"${name}", value)
        return expression


def _series(legend: str, series: dict[str, Any], step: int) -> Series:
    name = re.sub(r"{{\s*(\w+)\s*}}", lambda label: series["metric"].get(label[1], label[1]), legend)
    points = [(at * 1000, float(value)) for at, value in series["values"]]
    finite = [(at, value if math.isfinite(value) else None) for at, value in points]
    return {"name": name, "points": finite, "step": step * 1000}


def drawing(board: dict[str, Any], source: Source, window: Window) -> dict[str, Any]:
    """Return what `panels.jsx` draws: a dashboard with the series of each panel."""
    answers = [source.answers(panel, window) for panel in board["panels"]]
    return {"dashboard": board, "answers": answers, "from": window.start * 1000, "to": window.end * 1000}


def built() -> Path:
    """Return the folder of the bundled panels, made anew if their sources changed.

    Raise `PanelsMissing` if their packages cannot be fetched.
    """
    state = "\n".join(path.read_text("utf-8") for path in sorted(SOURCES.glob("*.*")))
    mark = _BUILT / "sources"
    if not mark.exists() or mark.read_text("utf-8") != state:
        shutil.copytree(SOURCES, _BUILT, dirs_exist_ok=True, ignore=shutil.ignore_patterns("node_modules"))
        try:
            _npm("ci")
        except (subprocess.SubprocessError, OSError) as error:
            raise PanelsMissing(f"npm cannot fetch the panels of Grafana: {error}") from error
        _npm("run", "build")
        mark.write_text(state, "utf-8")
    return _BUILT


def _npm(*arguments: str) -> None:
    subprocess.run(["npm", *arguments], cwd=_BUILT, check=True, capture_output=True, timeout=_NPM_SECONDS)


def show(page: Page, drawing: dict[str, Any], folder: Path) -> None:
    """Draw a dashboard on a page of a browser, with the panels in `folder`; return when all are there."""
    html = _PAGE.replace("{drawing}", json.dumps(drawing).replace("<", "\\u003c"))

    def answer(route: Route) -> None:
        name = urlsplit(route.request.url).path.removeprefix("/")
        file = folder / (_ICONS / name if name.startswith("public/") else name)
        if not name:
            route.fulfill(body=html, content_type="text/html")
        elif file.is_file():
            route.fulfill(path=file)
        else:
            route.fulfill(status=404)  # Inter, which is not in the package

    page.unroute_all()
    page.route(f"{_ORIGIN}**", answer)
    page.set_viewport_size({"width": _WIDTH, "height": 800})
    page.goto(_ORIGIN)
    num_charts = sum(bool(series) for series in drawing["answers"])
    page.wait_for_function(f"Object.keys(window.drawn ?? {{}}).length === {num_charts}")
    page.wait_for_load_state("networkidle")  # icons


def write_picture(page: Page, path: Path) -> None:
    """Write what a page shows as a small WebP file: few colors, without loss."""
    picture = Image.open(BytesIO(page.screenshot(full_page=True))).convert("RGB")
    path.parent.mkdir(parents=True, exist_ok=True)
    with_few_colors(picture).save(path, lossless=True, method=4)


def with_few_colors(picture: Image.Image) -> Image.Image:
    """Return a picture in its most frequent colors that people can tell apart, so that lines keep theirs."""
    found = cast("list[tuple[int, tuple[int, int, int]]]", picture.getcolors(picture.width * picture.height))
    counted = sorted(found, reverse=True)
    chosen = [color for _, color in counted[:_NUM_GROUNDS]]
    for _, color in counted:
        if all(max(abs(a - b) for a, b in zip(color, other, strict=True)) > _APART for other in chosen):
            chosen.append(color)
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for color in chosen[:_COLORS] for part in color])
    return picture.quantize(palette=palette, dither=Image.Dither.NONE).convert("RGB")


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw all dashboards into a folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("prometheus", nargs="?", help="its address; without it, that of a server under load")
    parser.add_argument("--minutes", type=float, default=60, help="how far back they go")
    parser.add_argument("--scrape-seconds", type=int, default=15, help="how often this Prometheus scrapes")
    parser.add_argument("--model", default="tiny-flux", help="model of the dashboard of one model")
    parser.add_argument("--price", default="1", help="price of a worker and hour")
    parser.add_argument(
        "--to", type=Path, default=ROOT / "out" / "dashboards", help="folder for the pictures"
    )
    chosen = parser.parse_args(arguments)
    variables = {"model": chosen.model, "price": chosen.price}
    seconds = chosen.minutes * 60
    if chosen.prometheus:
        draw_all(Source(chosen.prometheus, chosen.scrape_seconds, variables), seconds, chosen.to)
    else:
        draw_own(variables, seconds, chosen.to)


def draw_own(variables: dict[str, str], seconds: float, folder: Path) -> None:
    """Write a picture of each dashboard of a server with two models, after so many seconds of load."""
    built()
    with (
        tempfile.TemporaryDirectory() as data,
        monitored_cluster(Path(data), ("tiny-flux", "tiny-sd"), _SCRAPE_SECONDS) as cluster,
    ):
        cluster.keep_busy(seconds)
        draw_all(Source(cluster.prometheus, _SCRAPE_SECONDS, variables), seconds, folder)


def draw_all(source: Source, seconds: float, folder: Path) -> None:
    """Write a picture of each dashboard into a folder."""
    window = Window.last(seconds, max(source.scrape_seconds, int(seconds / _POINTS)))
    panels = built()
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # which root cannot have
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=_chromium(), args=arguments)
        page = browser.new_page()
        for path in BOARDS:
            show(page, drawing(json.loads(path.read_text("utf-8")), source, window), panels)
            write_picture(page, folder / f"dashboard-{path.stem}.webp")
        browser.close()


def _chromium() -> str:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        raise SystemExit("no chromium on this machine: apt-get install chromium")
    return path


if __name__ == "__main__":
    main()
