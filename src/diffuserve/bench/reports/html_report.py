"""A page with plots and tables that stands alone: no script, no font, no network."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from diffuserve.bench.comparison import COMPARED, comparisons_of
from diffuserve.bench.figures import Figures
from diffuserve.bench.own_load import warning_of
from diffuserve.bench.reports.plots import Plot, Points
from diffuserve.bench.reports.timeline import batches, counted
from diffuserve.bench.running import BenchRun, Measured
from diffuserve.bench.targets import Address

_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0 } th, td { padding: .2rem .8rem .2rem 0; text-align: right }
th:first-child, td:first-child { text-align: left } th { border-bottom: 1px solid }
svg { width: 100%; max-width: 45rem; display: block; margin: 1rem 0 } .warning { color: #b00020 }
"""
_PERCENTS = (50, 95, 99)
_NUM_BINS = 40


def page_of(run: BenchRun, conditions: Mapping[str, str], given: Mapping[str, Any]) -> str:
    """Return the page as HTML."""
    addresses = list(dict.fromkeys(each.address for each in run.measured))
    return "\n".join(
        [
            '<!doctype html><html lang="en"><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>diffuserve bench</title><style>{_STYLE}</style>",
            f"<h1>{escape(', '.join(str(address) for address in addresses))}</h1>",
            "<p class=warning>Interrupted: of what had ended by then.</p>" if run.is_interrupted else "",
            _table(run),
            *_comparisons(run),
            *(_sweep_plot(run, address) for address in addresses if run.is_sweep and run.of(address)),
            Plot(title="How long requests took", x="seconds", y="requests", lines=_histograms(run)).svg(),
            *(_timeline(each) for each in run.measured),
            *_warnings(run),
            f"<p>Load: {escape(_listed(given))}.</p><p>Conditions: {escape(_listed(conditions))}.</p>",
            "</html>",
        ]
    )


def _table(run: BenchRun) -> str:
    names = ["server", "asked/s", "served", "failed", "images/s", "p50 s", "p95 s", "p99 s", "goodput/s"]
    return _drawn(names, [_cells(each) for each in run.measured])


def _comparisons(run: BenchRun) -> Iterator[str]:
    """Draw a table for all servers beside the first."""
    found = comparisons_of(run)
    if found:
        names = [f"beside {found[0].beside}", "rounds", *COMPARED]
        rows = [
            [str(each.address), str(each.num_rounds), *(str(each.ratios.get(name, "")) for name in COMPARED)]
            for each in found
        ]
        yield _drawn(names, rows)


def _drawn(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def _cells(measured: Measured) -> list[str]:
    figures = measured.figures
    return [
        _server(measured),
        "" if measured.rate is None else f"{measured.rate:.3g}",
        f"{figures.num_requests - figures.num_failed:,}",
        f"{figures.num_failed:,}",
        f"{figures.output_throughput:.2f}",
        *_percentiles(figures),
        "" if figures.goodput is None else f"{figures.goodput:.2f}",
    ]


def _percentiles(figures: Figures) -> list[str]:
    if figures.latency is None:
        return [""] * len(_PERCENTS)
    return [f"{figures.latency.percentiles[percent]:.3f}" for percent in _PERCENTS]


def _sweep_plot(run: BenchRun, address: Address) -> str:
    """Draw latency against rate, with the knee marked."""
    ranked = sorted((each for each in run.of(address) if each.rate), key=lambda each: each.rate or 0.0)
    lines = {
        f"p{percent}": [
            (each.rate or 0.0, each.figures.latency.percentiles[percent])
            for each in ranked
            if each.figures.latency
        ]
        for percent in _PERCENTS
    }
    knee, slo = run.knee(address), ranked[0].figures.slo
    mark = None if knee is None else (knee, f"{slo} up to {knee:.3g}/s")
    return Plot(
        title=f"{address}: latency against rate",
        x="requests a second",
        y="seconds",
        lines=lines,
        mark=mark,
    ).svg()


def _histograms(run: BenchRun) -> dict[str, Points]:
    """Return, for each load, how many requests took about so long, in equal bins of all."""
    taken = {
        _name(each): [outcome.latency for outcome in each.played.outcomes if outcome.latency is not None]
        for each in run.measured
    }
    longest = max((max(latencies) for latencies in taken.values() if latencies), default=1.0)
    width = longest / _NUM_BINS
    return {name: _bins(latencies, width) for name, latencies in taken.items()}


def _bins(latencies: list[float], width: float) -> Points:
    counts = [0] * (_NUM_BINS + 1)
    for latency in latencies:
        counts[min(int(latency / width), _NUM_BINS)] += 1
    corners = [
        ((place + side) * width, float(count)) for place, count in enumerate(counts) for side in (0, 1)
    ]
    return [(0.0, 0.0), *corners]


def _timeline(measured: Measured) -> str:
    return Plot(
        title=f"{_name(measured)}: requests over time",
        x="seconds",
        y="requests",
        lines={**counted(measured.played.outcomes), **batches(measured.watched)},
    ).svg()


def _name(measured: Measured) -> str:
    return _server(measured) if measured.rate is None else f"{_server(measured)} {measured.rate:.3g}/s"


def _server(measured: Measured) -> str:
    return (
        str(measured.address)
        if measured.round_number == 1
        else f"{measured.address} #{measured.round_number}"
    )


def _warnings(run: BenchRun) -> Iterator[str]:
    for each in run.measured:
        if warning := warning_of(each.own, each.figures.send_delay, each.figures.latency):
            yield f"<p class=warning>{escape(warning)}.</p>"
        if each.watched.unknown:
            yield f"<p>{escape(_name(each))}: batch sizes are not known: {escape(each.watched.unknown)}.</p>"
        for error, count in each.figures.errors.items():
            yield f"<p>{escape(_name(each))}: {count:,} × {escape(error)}</p>"


def _listed(values: Mapping[str, Any]) -> str:
    return "; ".join(f"{name} {value}" for name, value in values.items() if value not in (None, ""))
