"""Writes the Grafana dashboards of `deploy/monitoring/dashboards`, which are committed.

With `--check` it compares them instead.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from grafana_foundation_sdk.builders import dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef

from dashboard_panels import BOARDS, Board, Panel

FOLDER = Path(__file__).parents[1] / "deploy" / "monitoring" / "dashboards"
_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")


def dashboard_json(board: Board) -> str:
    """Return the text of a dashboard's file."""
    made = (
        dashboard.Dashboard(f"diffuserve: {board.title[0].lower()}{board.title[1:]}")
        .uid(f"diffuserve-{board.name}")
        .tags(["diffuserve"])
        .refresh("30s")
        .time(f"now-{board.hours}h", "now")
        .with_variable(dashboard.DatasourceVariable("datasource").type("prometheus"))
    )
    for name in board.variables:
        made = made.with_variable(_variable(name))
    for title, panels in board.rows.items():
        made = made.with_row(dashboard.Row(title))
        for panel in panels:
            made = made.with_panel(_panel(panel, board.interval, span=24 // len(panels)))
    return JSONEncoder(sort_keys=True, indent=2).encode(made.build()) + "\n"


def _variable(name: str) -> dashboard.TextBoxVariable | dashboard.QueryVariable:
    if name == "price":
        return dashboard.TextBoxVariable(name).label("Price of a worker and hour").default_value("1")
    known = dashboard.QueryVariable(name).label("Model").datasource(_SOURCE)
    return known.query("label_values(diffusion_queue_size, pool)")


def _panel(panel: Panel, interval: str | None, span: int) -> timeseries.Panel:
    made = timeseries.Panel().title(panel.title).datasource(_SOURCE).span(span).height(8)
    made = made.unit(panel.unit.name).min(0)
    options: dict[Callable[..., timeseries.Panel], float | str | None] = {
        made.axis_soft_max: panel.unit.axis_end,
        made.decimals: panel.unit.decimals,
        made.interval: interval,
        made.description: panel.description or None,
        made.no_value: panel.no_value or None,
    }
    for set_option, value in options.items():
        if value is not None:
            set_option(value)
    for number, (legend, expression) in enumerate(panel.queries.items()):
        query = prometheus.Dataquery().expr(expression).legend_format(legend).ref_id("ABCDEF"[number])
        made = made.with_target(query)
    return made


def main() -> int:
    """Write the files, or with `--check` return 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare the committed files instead")
    texts = {FOLDER / f"{board.name}.json": dashboard_json(board) for board in BOARDS}
    if parser.parse_args().check:
        kept = {path: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
        return int(kept != texts)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
