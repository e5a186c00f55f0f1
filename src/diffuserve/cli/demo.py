"""`diffuserve demo`: a server, two tenants, a dozen jobs, and a contact sheet of their images."""

import asyncio
import itertools
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from diffuserve.cli import options
from diffuserve.cli.destination import Destination
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.job import JobStatus
from diffuserve.domain.params import GenerationParams
from diffuserve.domain.tenant import Role
from diffuserve.domain.timestamps import from_rfc3339
from diffuserve.settings import LOOPBACK, Settings
from diffuserve.telemetry.log_config import LogConfig

if TYPE_CHECKING:
    from diffuserve.cli.local_worker import Launch
    from diffuserve.cli.watch import JobBars
    from diffuserve.client.jobs import Client
    from diffuserve.domain.resources.job import JobResource

EXAMPLES = "Example:\n\n  diffuserve demo -o out/demo"

# Prompt, width, height, steps.
SCENES = (
    ("a large red circle on a white background", 128, 128, 6),
    ("a large blue star on a yellow background", 128, 128, 8),
    ("a green triangle on a black background", 112, 112, 4),
    ("a small yellow circle at the top left on a blue background", 128, 128, 6),
    ("a large purple ring on a white background", 128, 128, 5),
    ("a large pink heart on a white background", 144, 144, 4),
    ("an orange square on a cyan background", 96, 96, 2),
    ("a cyan diamond on a purple background", 128, 128, 3),
    ("a green square left of a pink ring on a white background", 128, 112, 8),
    ("a large white cross on a red background", 112, 112, 4),
    ("a large brown square on a pink background", 96, 96, 2),
    ("a large black star on an orange background", 192, 128, 4),
)
TENANTS = ("studio", "newsroom")  # they take turns
_START_SECONDS = 120.0


@dataclass(frozen=True)
class FinishedJob:
    """A job of the demo in its final state; `path` is the file of its image, if there is one."""

    tenant: str
    job: "JobResource"
    path: Path | None


def demo(
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the images.")] = Path("out/demo"),
    engine_command: options.EngineCommand = None,
) -> None:
    """Start a server, submit a dozen jobs of two tenants over HTTP, and show their results.

    The path of the contact sheet with all images goes to stdout.
    """
    _check(output, engine_command)

    from diffuserve.cli.event_loop import run
    from diffuserve.cli.local_worker import Launch
    from diffuserve.telemetry.logs import configure_logs

    console, start = Console(stderr=True), time.perf_counter()
    output.mkdir(parents=True, exist_ok=True)
    log = output / "server.log"
    log.write_bytes(b"")
    configure_logs(LogConfig(), log.open("a", encoding="utf-8"))
    with tempfile.TemporaryDirectory(dir=output, prefix="data-") as folder:
        finished = run(_demo(_settings(Path(folder)), output, console, Launch(engine_command, log)))
    print_table(console, finished)
    succeeded = [result for result in finished if result.job.status is JobStatus.SUCCEEDED]
    console.print(
        f"{len(succeeded)} of {len(finished)} jobs succeeded; {time.perf_counter() - start:.1f} s in all",
        highlight=False,
    )
    if succeeded:
        typer.echo(f"look at {save_sheet(succeeded, output)}")
    raise typer.Exit(0 if len(succeeded) == len(SCENES) else 1)


def _check(output: Path, engine_command: str | None) -> None:
    """Raise `InvalidParams`, or as `check_server` does, before anything is written or started."""
    from diffuserve.cli.preflight import check_server

    destination = Destination.parse(output)
    if destination.stem is not None:
        raise InvalidParams("output", str(output), "is the name of an image; give a folder")
    destination.check()
    check_server(_settings(output), engine_command)


def _settings(folder: Path) -> Settings:
    """Return settings of the demo's own server, which the environment does not change."""
    own = {"model": "tiny-flux", "host": LOOPBACK, "port": 0, "data_dir": folder, "drain_seconds": 1.0}
    unset = ("database_url", "artifacts_url", "public_api_url", "public_base_url", "default_model")
    return Settings.with_options().model_copy(update={**own, **dict.fromkeys(unset)})


async def _demo(settings: Settings, output: Path, console: Console, launch: "Launch") -> list[FinishedJob]:
    """Start a server with an API key for each tenant, run all jobs, and stop it."""
    from diffuserve.cli.local_worker import server_with_worker, wait_until_ready
    from diffuserve.cli.wiring.control import open_store
    from diffuserve.client.jobs import Client

    async with open_store(settings) as store:
        keys = {name: (await store.keys.create(Role.TENANT, tenant_id=name))[1] for name in TENANTS}
    async with AsyncExitStack() as stack:
        with console.status("starting a server and its worker"):
            running = await stack.enter_async_context(server_with_worker(settings, False, launch))
            server = running.server
            await wait_until_ready(running.worker, server.plane.store, running.known, _START_SECONDS)
        console.print(f"serving on {server.address}", style="dim", highlight=False)
        clients = {
            name: await stack.enter_async_context(Client(server.address, key)) for name, key in keys.items()
        }
        return await _run_scenes(clients, output, console)


async def _run_scenes(clients: "dict[str, Client]", output: Path, console: Console) -> list[FinishedJob]:
    """Run every scene as a job, all at the same time; the tenants take turns."""
    from diffuserve.cli.watch import JobBars

    tenants = itertools.cycle(clients)
    with JobBars(console) as bars:
        jobs = [
            _run_scene(tenant, clients[tenant], params, output / f"{number:02}.png", bars)
            for number, (tenant, params) in enumerate(zip(tenants, scenes(), strict=False), 1)
        ]
        return await asyncio.gather(*jobs)


async def _run_scene(
    tenant: str, client: "Client", params: GenerationParams, path: Path, bars: "JobBars"
) -> FinishedJob:
    from diffuserve.cli.watch import follow

    job = await follow(client, await client.submit(params), bars.show)
    if job.status is not JobStatus.SUCCEEDED:
        return FinishedJob(tenant, job, None)
    await client.download(job.id, 0, path)
    return FinishedJob(tenant, job, path)


def scenes() -> list[GenerationParams]:
    return [
        GenerationParams(prompt=prompt, width=width, height=height, num_inference_steps=steps, seed=7 + i)
        for i, (prompt, width, height, steps) in enumerate(SCENES)
    ]


def print_table(console: Console, finished: Sequence[FinishedJob]) -> None:
    """Print how long each job waited and ran, by the server's clock; then those that failed."""
    table = Table(box=None, header_style="bold", caption="times in seconds")
    table.add_column("prompt", no_wrap=True, max_width=24)
    table.add_column("tenant", no_wrap=True)
    for name in ("size", "steps", "queue", "run", "total"):
        table.add_column(name, justify="right", no_wrap=True)
    for result in finished:
        job = result.job
        steps = str(job.input["num_inference_steps"])
        times = (
            _seconds(job.created_at, job.started_at),
            _seconds(job.started_at, job.finished_at),
            _seconds(job.created_at, job.finished_at),
        )
        table.add_row(escape(job.final_prompt), result.tenant, _size(job), steps, *times)
    console.print(table)
    for result in finished:
        job = result.job
        if job.status is not JobStatus.SUCCEEDED:
            reason = f": {job.error.message}" if job.error else ""
            console.print(f"{job.final_prompt!r} {job.status}{reason}", style="red", markup=False)


def save_sheet(finished: Sequence[FinishedJob], folder: Path) -> Path:
    """Write a contact sheet of all images into `folder`; return its path."""
    from PIL import Image

    from diffuserve.media.contact_sheet import contact_sheet
    from diffuserve.media.image_file import save_image

    images = [
        (Image.open(result.path), f"{result.job.final_prompt} ({_size(result.job)})")
        for result in finished
        if result.path is not None
    ]
    path = folder / "contact_sheet.png"
    save_image(contact_sheet(images), path, {})
    return path


def _size(job: "JobResource") -> str:
    return f"{job.input['width']}x{job.input['height']}"


def _seconds(start: str | None, end: str | None) -> str:
    if start is None or end is None:
        return ""
    return f"{(from_rfc3339(end) - from_rfc3339(start)).total_seconds():.2f}"
