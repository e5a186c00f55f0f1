"""`diffuserve cost`: what 1,000 images cost, as a server measured it or by a list of prices."""

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from diffuserve.cli import options
from diffuserve.cli.client.ask import ask
from diffuserve.cli.display.echo import echo
from diffuserve.cli.display.results import results
from diffuserve.settings import Settings

if TYPE_CHECKING:
    from diffuserve.cli.operate.price_list import PriceList
    from diffuserve.domain.resources.usage import UsageResource
    from diffuserve.domain.unit_cost import MeasuredCost

EXAMPLES = """
Examples:

  diffuserve cost

  diffuserve cost --since 2026-11-01 --until 2026-11-30 --json

  diffuserve cost --prices prices.yaml --useful-share 0.75 --useful-share 0.65
"""

_USEFUL_SHARE = 0.75


@options.takes_settings("server", "api_key")
def cost(
    settings: Settings,
    since: Annotated[
        str | None, typer.Option(metavar="DAY", help="First day, by UTC. [default: 30 days before the last]")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="DAY", help="Last day. [default: today]")] = None,
    prices: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Ask no server: work out this list of machines, in YAML."),
    ] = None,
    useful_share: Annotated[
        list[float] | None,
        typer.Option(
            min=0.01,
            max=1.0,
            help=f"With `--prices`: part of the time that goes into images. [default: {_USEFUL_SHARE}]",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Show what 1,000 images cost: if machines were always busy, and with their loading, idling and losses.

    A server tells what it measured, by the prices that its workers stated; it needs an operator's key.
    """
    if prices is not None:
        from diffuserve.cli.operate.price_list import read_prices

        _show_prices(read_prices(prices), useful_share or [_USEFUL_SHARE], as_json=as_json)
    else:
        _show_measured(settings, _day("since", since), _day("until", until), as_json=as_json)


def _day(name: str, text: str | None) -> str | None:
    """Return the day as it is given. Raise `InvalidParams` for another form."""
    from diffuserve.domain.errors import InvalidParams

    try:
        return None if text is None else date.fromisoformat(text).isoformat()
    except ValueError:
        raise InvalidParams(name, text, "write a day as 2026-11-30") from None


def _show_measured(settings: Settings, since: str | None, until: str | None, *, as_json: bool) -> None:
    from diffuserve.client.codec import encode
    from diffuserve.domain.unit_cost import MEASURED_BY, CostReport, measured_costs

    usage = ask(settings, lambda client: client.usage(since, until, MEASURED_BY))
    if as_json:
        echo(encode(CostReport(usage=usage, costs=tuple(measured_costs(usage)))))
        return
    table = _table("model", "machine", "images", "images/h busy", "price/h", "useful share", "p95 s")
    _add_costs(table, "per 1,000 busy", "per 1,000 in all")
    for measured in measured_costs(usage):
        table.add_row(*_cells(measured))
    results().print(table)
    echo(totals_of(usage), err=True)


def _cells(found: "MeasuredCost") -> list[str]:
    return [
        found.model,
        found.kind.value,
        f"{found.num_images:,}",
        f"{found.images_per_hour:,.0f}",
        f"{found.price_per_hour:.2f}",
        f"{found.useful_share:.0%}",
        "" if found.p95 is None else f"{found.p95:.1f}",
        f"{found.per_thousand_busy:.2f}",
        f"{found.per_thousand:.2f}",
    ]


def totals_of(usage: "UsageResource") -> str:
    """Describe in a line what the workers cost, and which part of it was no use."""
    days = f"{usage.since} to {usage.until}"
    if usage.fleet is None:
        return f"{days}: {usage.useful.seconds:,.0f} device-seconds; costs of machines are shown to operators"
    total = sum(machines.cost for machines in usage.fleet.machines)
    hours = sum(machines.seconds for machines in usage.fleet.machines) / 3_600.0
    if hours == 0:
        return f"{days}: no worker was registered"
    if total == 0:
        return f"{days}: {hours:,.1f} worker-hours without a price; start workers with --price"
    overhead = usage.fleet.overhead.cost
    return (
        f"{days}: {hours:,.1f} worker-hours for {total:,.2f}, "
        f"of which {overhead:,.2f} ({overhead / total:.0%}) for loading, idling and lost work"
    )


def _show_prices(prices: "PriceList", shares: Sequence[float], *, as_json: bool) -> None:
    from diffuserve.cli.operate.price_list import costs_of

    if as_json:
        import orjson

        echo(orjson.dumps(costs_of(prices, shares), option=orjson.OPT_INDENT_2).decode())
        return
    table = _table("machine", "kind", "price/h", "images/h", "p95 s")
    _add_costs(table, "per 1,000 busy", *(f"at {share:.0%}" for share in shares))
    for row in costs_of(prices, shares):
        p95 = row["p95"]
        cells = [str(row["machine"]), str(row["kind"]), f"{row['price_per_hour']:.2f}"]
        cells += [f"{row['images_per_hour']:,.0f}", "" if p95 is None else f"{p95:.1f}"]
        table.add_row(*cells, *(f"{each:.2f}" for each in row["per_thousand"].values()))
    results().print(table)
    echo(f"prices of {prices.date}", err=True)


def _table(*names: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in names:
        table.add_column(
            name, justify="left" if name in ("model", "machine", "kind") else "right", no_wrap=True
        )
    return table


def _add_costs(table: Table, *names: str) -> None:
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
