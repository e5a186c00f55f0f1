"""`diffuserve workers`: listing and draining the workers of a server."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from diffuserve.cli import options
from diffuserve.cli.client.ask import ask
from diffuserve.cli.client.jobs import age
from diffuserve.cli.display.echo import echo
from diffuserve.cli.display.results import results
from diffuserve.cli.operate.server_tables import models_of, state_of
from diffuserve.cli.operate.server_view import replaced_line, without_replaced
from diffuserve.client.codec import encode
from diffuserve.domain.errors import InvalidParams, WorkerNotFound
from diffuserve.domain.resources.worker import WorkerList, WorkerResource
from diffuserve.domain.text.timestamps import from_rfc3339
from diffuserve.domain.workers.worker import WorkerState
from diffuserve.settings import Settings

if TYPE_CHECKING:
    from diffuserve.sdk.async_client import AsyncClient

EXAMPLES = """
Examples:

  diffuserve workers list

  diffuserve workers drain gpu-7 --wait

  diffuserve workers list --json --server https://images.example.com
"""

_LOOK_SECONDS = 0.5

workers = typer.Typer(
    name="workers", help="Workers of a server, for operators.", epilog=EXAMPLES, no_args_is_help=True
)


@workers.command("list", epilog=EXAMPLES)
@options.takes_settings("server", "api_key")
def list_workers(
    settings: Settings,
    all: Annotated[
        bool, typer.Option("--all", help="List lost workers that others of their name replaced, too.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """List the workers with their state, models and jobs. JSON has all of them."""
    found = ask(settings, lambda client: client.workers())
    if as_json:
        echo(encode(WorkerList(data=tuple(found))))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("id", "name", "state", "role", "machine", "models", "jobs", "heartbeat", "labels"):
        table.add_column(name, no_wrap=True)
    shown = found if all else without_replaced(found)
    for worker in shown:
        table.add_row(
            worker.id,
            worker.name,
            state_of(worker),
            str(worker.role),
            "spot" if worker.is_spot else "on-demand",
            models_of(worker),
            str(worker.num_leases),
            f"{age(from_rfc3339(worker.heartbeat_at))} ago",
            ", ".join(f"{key}={value}" for key, value in worker.labels.items()),
        )
    results().print(table)
    if len(shown) < len(found):
        echo(replaced_line(len(found) - len(shown)), err=True)
    if not found:
        echo("no worker is registered: jobs wait until one is", err=True)


@workers.command(epilog=EXAMPLES)
@options.takes_settings("server", "api_key")
def drain(
    settings: Settings,
    worker: Annotated[str, typer.Argument(metavar="WORKER", help="Id or name of the worker.")],
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended.")] = False,
    as_json: options.Json = False,
) -> None:
    """Give a worker no more jobs: it finishes those that it holds, deregisters and ends."""
    from diffuserve.cli.client.connect import WAITING_PATIENCE_SECONDS

    patience = WAITING_PATIENCE_SECONDS if wait else None
    drained = ask(settings, lambda client: _drain(client, worker, wait), patience_seconds=patience)
    if as_json:
        echo(encode(drained))
    else:
        outcome = "ended" if wait else f"drains, {drained.num_leases} jobs left"
        echo(f"{drained.id} {outcome}")


async def _drain(client: "AsyncClient", wanted: str, is_waited_for: bool) -> WorkerResource:
    worker = named(wanted, await client.workers())
    await client.drain_worker(worker.id)
    if is_waited_for:
        return await _until_gone(client, worker)
    return next((found for found in await client.workers() if found.id == worker.id), worker)


async def _until_gone(client: "AsyncClient", worker: WorkerResource) -> WorkerResource:
    """Wait until the worker is not in the list any more, or lost; return it as it was last."""
    from diffuserve.cli.display.waiting import Waiting

    with Waiting() as waiting:
        while True:
            waiting.show(f"{worker.name or worker.id} drains: {worker.num_leases} jobs left")
            left = [found for found in await client.workers() if found.id == worker.id]
            if not left:
                return worker
            worker = left[0]
            if worker.state is WorkerState.LOST:
                return worker
            await asyncio.sleep(_LOOK_SECONDS)


def named(wanted: str, found: Sequence[WorkerResource]) -> WorkerResource:
    """Return the worker with this id, or the only one with this name. Raise `WorkerNotFound`.

    One that is alive goes before those of its name that are lost, such as its own earlier life.
    """
    matches = [worker for worker in found if worker.id == wanted]
    matches = matches or [worker for worker in found if worker.name == wanted]
    if len(matches) > 1:
        matches = [worker for worker in matches if worker.state is not WorkerState.LOST] or matches
    if len(matches) == 1:
        return matches[0]
    if matches:
        ids = ", ".join(worker.id for worker in matches)
        raise InvalidParams("worker", wanted, f"{len(matches)} workers have this name; give an id: {ids}")
    raise WorkerNotFound(f"no worker {wanted!r}; `diffuserve workers list` shows ids and names")
