"""`diffuserve bench`: servers under load."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from diffuserve.cli import options
from diffuserve.cli.display.console import Console, text_column
from diffuserve.cli.display.echo import echo
from diffuserve.cli.display.results import results
from diffuserve.cli.exit_codes import FAILED, INTERRUPTED
from diffuserve.domain.errors import InvalidParams
from diffuserve.settings import Settings

if TYPE_CHECKING:
    from diffuserve.bench.given import Given
    from diffuserve.bench.playing import Played
    from diffuserve.bench.running import BenchRun, Show

EXAMPLES = """
Examples:

  diffuserve bench http://127.0.0.1:8000

  diffuserve bench http://127.0.0.1:8000 --request-rate 8 --slo "p95<2s" --html load.html

  diffuserve bench http://127.0.0.1:8000 --workload studio --sweep --slo "p95<5s"

  diffuserve bench http://127.0.0.1:8000 sglang=http://127.0.0.1:30000 --request-rate 4 --request-count 200

  diffuserve bench http://127.0.0.1:8000 --input-file day.jsonl --fixed-schedule --json

Servers are URLs; what stands before a = is the API that one speaks, by default diffuserve's: openai, sglang,
vllm-omni, a1111, comfyui, or http with --template. Several are put under the same load, one after the other;
with --rounds in turn, and the ratios of each round are told with their spread.
"""

_TIMEOUT_SECONDS = 600.0


class Pattern(StrEnum):
    """How requests arrive."""

    POISSON = "poisson"
    GAMMA = "gamma"
    CONSTANT = "constant"


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Where what was measured goes."""

    html: Path | None
    records: Path | None
    as_json: bool


@options.takes_settings("api_key")
def bench(  # noqa: PLR0913 (a command has as many arguments as options)
    settings: Settings,
    servers: Annotated[
        list[str], typer.Argument(metavar="[API=]URL...", help="Servers to put under the same load.")
    ],
    *,
    model: Annotated[str | None, typer.Option(help="Model that the servers have.")] = None,
    workload: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="Mix of requests: chat-app, studio, batch-night, seed-1360x768, or a YAML file.",
        ),
    ] = "chat-app",
    input_file: Annotated[
        Path | None, typer.Option(help="Requests instead, a JSON object a line: prompt, extra, timestamp.")
    ] = None,
    fixed_schedule: Annotated[
        bool, typer.Option("--fixed-schedule", help="Send each line of the file at its timestamp, in ms.")
    ] = False,
    request_rate: Annotated[
        float | None, typer.Option(help="Requests a second, whatever the server does: an open loop.")
    ] = None,
    request_rate_end: Annotated[
        float | None, typer.Option(help="Rate that --request-rate rises or falls to over the whole duration.")
    ] = None,
    arrival_pattern: Annotated[
        Pattern, typer.Option(help="Gaps between requests of an open loop.")
    ] = Pattern.POISSON,
    burstiness: Annotated[
        float, typer.Option(help="Of --arrival-pattern gamma: below 1 in bursts, above 1 more even.")
    ] = 1.0,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            help="Requests at a time, instead of a rate: a closed loop. [default: 4 without a rate]",
        ),
    ] = None,
    request_count: Annotated[
        int | None,
        typer.Option(min=1, max=1_000_000, help="Requests in all. [default: 100]"),
    ] = None,
    benchmark_duration: Annotated[
        float | None,
        typer.Option(min=0.1, max=7 * 86_400, help="Seconds of an open loop, instead of a count."),
    ] = None,
    warmup_request_count: Annotated[
        int, typer.Option(min=0, max=10_000, help="Requests before it, which count nowhere.")
    ] = 3,
    slo: Annotated[
        str | None,
        typer.Option(
            "--slo",
            "--goodput",
            help='Objective such as "p95<2s": a request in time is good, one that failed is not.',
        ),
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Find the highest rate that keeps the objective.")
    ] = False,
    rounds: Annotated[
        int, typer.Option(min=1, max=1_000, help="Times that each server gets the load, all in turn.")
    ] = 1,
    price_per_hour: Annotated[
        float | None,
        typer.Option(min=0, help="What the server costs an hour, for the cost of 1,000 outputs."),
    ] = None,
    keys_file: Annotated[
        Path | None,
        typer.Option(help="YAML file with keys: servers by URL, and the workload's tenants by name."),
    ] = None,
    base_side: Annotated[
        int | None,
        typer.Option(
            min=16,
            max=8192,
            help="Side of the model's own pictures. [default: as a diffuserve server says, else 1024]",
        ),
    ] = None,
    template: Annotated[
        Path | None,
        typer.Option(help="What an http= server takes, in YAML: path, body, where the output is."),
    ] = None,
    request_timeout: Annotated[
        float, typer.Option(min=0.1, max=86_400, help="Seconds after which a request has failed.")
    ] = _TIMEOUT_SECONDS,
    random_seed: Annotated[int, typer.Option(help="Makes the same requests and arrivals each time.")] = 0,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with plots.")] = None,
    records: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a line of JSON for each request.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Put servers under load, and measure what they give.

    Latencies count from when a request was due, and outputs are looked at. Ctrl-C keeps what was measured.
    Without a rate, requests are sent some at a time: a closed loop, which is kinder than real users are.
    """
    from diffuserve.bench.given import Given

    bursts = {Pattern.POISSON: 1.0, Pattern.GAMMA: burstiness, Pattern.CONSTANT: None}[arrival_pattern]
    given = Given(
        servers=servers,
        model=model,
        workload=workload,
        input_file=input_file,
        fixed_schedule=fixed_schedule,
        request_rate=request_rate,
        request_rate_end=request_rate_end,
        burstiness=bursts,
        concurrency=concurrency,
        request_count=request_count,
        benchmark_duration=benchmark_duration,
        warmup_request_count=warmup_request_count,
        slo=slo,
        sweep=sweep,
        rounds=rounds,
        price_per_hour=price_per_hour,
        api_key=settings.api_key,
        keys_file=keys_file,
        base_side=base_side,
        template=template,
        request_timeout=request_timeout,
        random_seed=random_seed,
    )
    raise typer.Exit(_bench(given, Outputs(html=html, records=records, as_json=as_json)))


def _bench(given: "Given", outputs: Outputs) -> int:
    """Run it, and write what was measured, also what Ctrl-C left; return the exit code."""
    from diffuserve.bench.running import BenchRun

    run = BenchRun()
    with _bar() as show:
        try:
            asyncio.run(_measure(given, run, show))
        except KeyboardInterrupt:
            run.is_interrupted = True
    if run.measured:
        _write(run, given, outputs)
    if run.is_interrupted:
        return INTERRUPTED
    has_failed = all(each.figures.num_failed == each.figures.num_requests for each in run.measured)
    return FAILED if has_failed else 0


async def _measure(given: "Given", run: "BenchRun", show: "Show") -> None:
    from diffuserve.bench.given import base_side_of, plan_of, servers_of
    from diffuserve.bench.running import run_all

    given.check()
    servers = servers_of(given)
    plan = plan_of(given, await base_side_of(given, servers))
    with ThreadPoolExecutor(1, "bench-checker") as checker:
        await run_all(servers, plan, run, show, checker)


def _write(run: "BenchRun", given: "Given", outputs: Outputs) -> None:
    from diffuserve.bench.conditions import read_conditions
    from diffuserve.bench.reports.html_report import page_of
    from diffuserve.bench.reports.json_report import records_of, report_of
    from diffuserve.bench.reports.tables import tables_of

    conditions, told = read_conditions(("httpx",)), given.told()
    if outputs.html is not None:
        _write_file("html", outputs.html, page_of(run, conditions, told).encode())
    if outputs.records is not None:
        lines = [record for measured in run.measured for record in records_of(measured)]
        content = b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines)
        _write_file("records", outputs.records, content)
    if outputs.as_json:
        echo(orjson.dumps(report_of(run, conditions, told), option=orjson.OPT_INDENT_2).decode())
    else:
        results().print(tables_of(run))


def _write_file(option: str, path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise InvalidParams(option, str(path), f"cannot be written: {error.strerror}") from error


@contextmanager
def _bar() -> "Iterator[Show]":
    """Show on stderr what is played: how many requests are under way, have ended and have failed."""
    from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), text_column("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting")

        def show(title: str, played: "Played") -> None:
            num_failed = sum(each.error is not None for each in played.outcomes)
            failed = f", {num_failed:,} failed" if num_failed else ""
            told = f"{len(played.outcomes):,} ended{failed}, {played.num_under_way:,} under way"
            progress.update(task, description=f"{title}: {told}")

        yield show
