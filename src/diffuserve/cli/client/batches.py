"""`diffuserve batches`: many jobs at once."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.table import Table

from diffuserve.cli import options
from diffuserve.cli.client.ask import ask
from diffuserve.cli.client.jobs import age
from diffuserve.cli.display.echo import echo
from diffuserve.cli.display.results import results
from diffuserve.cli.exit_codes import FAILED, INTERRUPTED
from diffuserve.client.codec import encode
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.jobs.job import FINAL_STATUSES, Band, JobStatus
from diffuserve.domain.resources.batch import BatchResource
from diffuserve.domain.text.timestamps import from_rfc3339
from diffuserve.settings import Settings

if TYPE_CHECKING:
    from diffuserve.sdk.async_client import AsyncClient

EXAMPLES = """
Examples:

  diffuserve batches submit prompts.txt --wait

  diffuserve batches submit cards.jsonl --webhook https://example.com/hooks

  diffuserve batches results ID -o results.jsonl
"""

_LOOK_SECONDS = 1.0

batches = typer.Typer(
    name="batches", help="Batches: many jobs at once.", epilog=EXAMPLES, no_args_is_help=True
)

BatchId = Annotated[str, typer.Argument(metavar="ID", help="Id that `diffuserve batches submit` printed.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until every item has ended.")]


@batches.command(epilog=EXAMPLES)
@options.takes_settings("server", "api_key")
def submit(  # noqa: PLR0913 (a command has as many arguments as options)
    settings: Settings,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Items as JSON lines (.jsonl), a whole body (.json), or a prompt a line (.txt); - for JSON "
            "lines from stdin.",
        ),
    ],
    model: Annotated[str | None, typer.Option(help="Model that the server has.")] = None,
    priority: Annotated[Band | None, typer.Option(help="Priority of the jobs; by default batch.")] = None,
    webhook: Annotated[
        str | None, typer.Option(metavar="URL", help="URL to call when the batch has ended.")
    ] = None,
    wait: Wait = False,
    as_json: options.Json = False,
) -> None:
    """Submit the items of a file as jobs. The id of the batch goes to stdout.

    Every item is checked before the first is stored. Ctrl-C while waiting leaves the batch running.
    """
    given = {"model": model, "priority": priority, "webhook_url": webhook}
    query = {name: str(value) for name, value in given.items() if value is not None}
    raise typer.Exit(_follow(settings, lambda client: _submit(client, file, query), wait, as_json))


async def _submit(client: "AsyncClient", file: Path, query: dict[str, str]) -> BatchResource:
    content = _content(file)
    if file.suffix == ".json":
        if query:
            raise InvalidParams("file", str(file), "a JSON body holds its own options; leave out the others")
        return await client.batches.submit_json(content)
    return await client.batches.submit_lines(lines_of(content) if file.suffix == ".txt" else content, query)


def _content(file: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise InvalidParams("file", str(file), f"cannot be read: {error.strerror}") from error


def lines_of(prompts: bytes) -> bytes:
    """Return JSON lines for a prompt on each line; an item is named after its line."""
    lines = enumerate(prompts.decode(errors="replace").splitlines(), start=1)
    items = [
        {"custom_id": f"line-{number}", "input": {"prompt": prompt}}
        for number, prompt in lines
        if prompt.strip()
    ]
    return b"".join(orjson.dumps(item, option=orjson.OPT_APPEND_NEWLINE) for item in items)


@batches.command(epilog=EXAMPLES)
@options.takes_settings("server", "api_key")
def show(settings: Settings, batch_id: BatchId, wait: Wait = False, as_json: options.Json = False) -> None:
    """Show how many of a batch's items have which status."""
    code = _follow(settings, lambda client: client.batches.get(batch_id), wait, as_json, is_shown=True)
    raise typer.Exit(code)


@batches.command("list", epilog=EXAMPLES)
@options.takes_settings("server", "api_key")
def list_batches(
    settings: Settings,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Maximum number of batches.")] = 20,
    as_json: options.Json = False,
) -> None:
    """List batches, newest first."""
    page = ask(settings, lambda client: client.batches.page(limit))
    if as_json:
        echo(encode(page))
        return
    table = Table(
        "id", "status", "items", "ended", "failed", "age", box=None, header_style="bold", pad_edge=False
    )
    for batch in page.data:
        num_failed = str(batch.counts.get(JobStatus.FAILED, 0))
        made = age(from_rfc3339(batch.created_at))
        table.add_row(
            batch.id, batch.status, f"{batch.num_items:,}", f"{_num_ended(batch):,}", num_failed, made
        )
    results().print(table)


@batches.command(epilog=EXAMPLES)
@options.takes_settings("server", "api_key")
def cancel(settings: Settings, batch_id: BatchId, as_json: options.Json = False) -> None:
    """Cancel every item of a batch; running ones stop after their current step."""
    batch = ask(settings, lambda client: client.batches.cancel(batch_id))
    echo(encode(batch) if as_json else f"{batch.id} {batch.status}")


@batches.command("results", epilog=EXAMPLES)
@options.takes_settings("server", "api_key")
def write_results(
    settings: Settings,
    batch_id: BatchId,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File to write; by default stdout.")
    ] = None,
) -> None:
    """Write a line of JSON for every item that has ended, in the items' order, with URLs of its images."""
    ask(settings, lambda client: _write(client, batch_id, output))


async def _write(client: "AsyncClient", batch_id: str, output: Path | None) -> None:
    """Write to a file of another name first: after an error there is none that looks complete."""
    if output is None:
        async for line in client.batches.result_lines(batch_id):
            echo(line)
        return
    partial = output.with_name(f".{output.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            async for line in client.batches.result_lines(batch_id):
                file.write(f"{line}\n")
        partial.replace(output)
    except OSError as error:
        raise InvalidParams("output", str(output), f"cannot be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    echo(output)


def _follow(
    settings: Settings,
    find: Callable[["AsyncClient"], Coroutine[Any, Any, BatchResource]],
    is_waited_for: bool,
    as_json: bool,
    is_shown: bool = False,
) -> int:
    """Print a batch, after its end if it is waited for; return 1 if an item did not succeed."""
    found: list[BatchResource] = []
    try:
        batch = asyncio.run(_find_and_wait(settings, find, is_waited_for, found))
    except KeyboardInterrupt:
        if found:
            told = f"batch {found[0].id} continues; `diffuserve batches cancel {found[0].id}` cancels it"
            echo(told, err=True)
        return INTERRUPTED
    described = f"{batch.id} {summary(batch)}" if is_shown or is_waited_for else batch.id
    echo(encode(batch) if as_json else described)
    has_succeeded = batch.counts.get(JobStatus.SUCCEEDED, 0) == batch.num_items
    return FAILED if is_waited_for and not has_succeeded else 0


async def _find_and_wait(
    settings: Settings,
    find: Callable[["AsyncClient"], Coroutine[Any, Any, BatchResource]],
    is_waited_for: bool,
    found: list[BatchResource],
) -> BatchResource:
    from diffuserve.cli.client.connect import WAITING_PATIENCE_SECONDS, connect
    from diffuserve.cli.display.waiting import Waiting

    async with connect(settings) as client:
        batch = await find(client)
    found.append(batch)
    if not is_waited_for:
        return batch
    async with connect(settings, patience_seconds=WAITING_PATIENCE_SECONDS) as client:
        with Waiting() as waiting:
            while batch.finished_at is None:
                waiting.show(f"batch {batch.id}: {summary(batch)}")
                await asyncio.sleep(_LOOK_SECONDS)
                batch = await client.batches.get(batch.id)
    return batch


def summary(batch: BatchResource) -> str:
    """Describe a batch in a line: its status, and the numbers of its items."""
    counts = ", ".join(f"{count:,} {status}" for status, count in batch.counts.items() if count)
    return f"{batch.status}: {_num_ended(batch):,} of {batch.num_items:,} ended ({counts})"


def _num_ended(batch: BatchResource) -> int:
    return sum(batch.counts.get(status, 0) for status in FINAL_STATUSES)
