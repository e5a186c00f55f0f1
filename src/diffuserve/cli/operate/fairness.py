"""`diffuserve fairness`: what tenants were charged, and the way to begin anew with it."""

import asyncio
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from diffuserve.cli import options
from diffuserve.cli.display.console import Console
from diffuserve.cli.display.echo import echo
from diffuserve.cli.display.results import results
from diffuserve.settings import Settings

if TYPE_CHECKING:
    from diffuserve.jobs.reads.virtual_times import TenantTime

EXAMPLES = """
Examples:

  diffuserve fairness show

  diffuserve fairness reset --database-url postgresql://diffuserve@db/diffuserve
"""

fairness = typer.Typer(
    name="fairness",
    help="Virtual times of tenants, directly in the server's database.",
    epilog=EXAMPLES,
    no_args_is_help=True,
)


@fairness.command(epilog="Example:\n\n  diffuserve fairness show --json")
@options.takes_settings("data_dir", "database_url")
def show(settings: Settings, as_json: options.Json = False) -> None:
    """List the tenants, those that are furthest behind first: they are served next."""
    found = asyncio.run(_read(settings))
    if as_json:
        echo(json.dumps([asdict(each) for each in found], indent=2))
        return
    columns = ("tenant", "plan", "weight", "virtual time", "queued", "running")
    table = Table(*columns, box=None, header_style="bold")
    for each in found:
        counts = f"{each.num_queued:,}", f"{each.num_running:,}"
        table.add_row(each.tenant_id, each.plan, f"{each.weight:g}", f"{each.vtime:,.1f}", *counts)
    results().print(table)


@fairness.command(epilog="Example:\n\n  diffuserve fairness reset")
@options.takes_settings("data_dir", "database_url")
def reset(settings: Settings) -> None:
    """Let all tenants begin anew, as if nobody had used anything. Servers may run meanwhile."""
    num_tenants = asyncio.run(_reset(settings))
    told = f"the virtual times of {num_tenants:,} tenants begin anew"
    Console(stderr=True).print(told, highlight=False)


async def _read(settings: Settings) -> "list[TenantTime]":
    from diffuserve.wiring.control import open_store

    async with open_store(settings) as store:
        return await store.virtual_times.read()


async def _reset(settings: Settings) -> int:
    from diffuserve.wiring.control import open_store

    async with open_store(settings) as store:
        return await store.virtual_times.reset()
