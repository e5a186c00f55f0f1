"""Results as tables for a terminal."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from diffuserve.bench.comparison import COMPARED, Comparison, comparisons_of
from diffuserve.bench.figures import Figures, Spread
from diffuserve.bench.own_load import warning_of
from diffuserve.bench.running import BenchRun, Measured


def tables_of(run: BenchRun) -> Group:
    """Return what a person reads after a run."""
    parts: list[RenderableType] = [_overview(run.measured)]
    for measured in run.measured[-1:] if len(run.measured) == 1 else []:
        parts += _details(measured.figures)
    if compared := comparisons_of(run):
        parts += [Text(), _comparisons(compared)]
    parts += [Text(line) for line in _sentences(run)]
    return Group(*parts)


def _overview(measured: Sequence[Measured]) -> Table:
    has_slo = any(each.figures.goodput is not None for each in measured)
    has_rounds = any(each.round_number > 1 for each in measured)
    columns = [
        "server",
        *(["round"] if has_rounds else []),
        "asked/s",
        "served",
        "failed",
        "images/s",
        "p50",
        "p95",
        "p99",
        "max",
    ]
    has_batch = any(each.watched.mean_batch_size is not None for each in measured)
    columns += [*(["in a step"] if has_batch else []), *(["goodput/s", "in time"] if has_slo else [])]
    table = Table(*columns, box=None, header_style="bold")
    for each in measured:
        figures = each.figures
        latency = figures.latency
        row = [
            str(each.address),
            *([str(each.round_number)] if has_rounds else []),
            "" if each.rate is None else f"{each.rate:.3g}",
            f"{figures.num_requests - figures.num_failed:,}",
            f"{figures.num_failed:,}",
            f"{figures.output_throughput:.2f}",
            *(_percentiles(latency) if latency else ["", "", "", ""]),
        ]
        if has_batch:
            batch = each.watched.mean_batch_size
            row.append("" if batch is None else f"{batch:.2f}")
        if has_slo and figures.goodput is not None:
            row += [f"{figures.goodput:.2f}", f"{figures.good_share or 0:.1%}"]
        table.add_row(*row, style=None if figures.is_kept in (None, True) else "yellow")
    return table


def _comparisons(found: Sequence[Comparison]) -> Table:
    table = Table(f"beside {found[0].beside}", "rounds", *COMPARED, box=None, header_style="bold")
    for each in found:
        shown = [str(each.ratios.get(name, "")) for name in COMPARED]
        table.add_row(str(each.address), str(each.num_rounds), *shown)
    return table


def _percentiles(spread: Spread) -> list[str]:
    return [_seconds(spread.percentiles[percent]) for percent in (50, 95, 99)] + [_seconds(spread.max)]


def _details(figures: Figures) -> Iterator[RenderableType]:
    for title, spreads in (("phase", figures.phases), ("part of the mix", figures.classes)):
        if spreads:
            yield Text()
            table = Table(title, "requests", "p50", "p95", "p99", "max", box=None, header_style="bold")
            for name, spread in spreads.items():
                table.add_row(name, f"{spread.count:,}", *_percentiles(spread))
            yield table
    if len(figures.tenants) > 1:
        yield Text()
        table = Table("tenant", "asked", "served", "p50", "p95", box=None, header_style="bold")
        for name, each in figures.tenants.items():
            shown = _percentiles(each.latency)[:2] if each.latency else ["", ""]
            table.add_row(name, f"{each.num_asked:,}", f"{each.num_served:,}", *shown)
        yield table


def _sentences(run: BenchRun) -> Iterator[str]:
    for address in dict.fromkeys(each.address for each in run.measured if run.is_sweep):
        if slo := run.of(address)[0].figures.slo:
            knee = run.knee(address)
            yield (
                f"\n{address}: {slo} is kept up to {knee:.3g} requests a second"
                if knee
                else (f"\n{address}: {slo} was kept at no rate that was tried")
            )
    for measured in run.measured:
        figures = measured.figures
        for error, count in figures.errors.items():
            yield f"\n{count:,} of {figures.num_requests:,}: {error}"
        if figures.cost_per_1000 is not None:
            yield f"\n{measured.address}: {figures.cost_per_1000:.2f} for 1,000 outputs at the price given"
        if warning := warning_of(measured.own, figures.send_delay, figures.latency):
            yield f"\nwarning: {warning}"
    if run.is_interrupted:
        yield "\ninterrupted: the figures are of what had ended by then"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
