"""`diffuserve demo`: a server, two tenants, jobs for each bundled model, and a sheet of what they draw."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from diffuserve.cli import options
from diffuserve.cli.display.console import Console
from diffuserve.cli.display.echo import echo
from diffuserve.cli.images.destination import Destination
from diffuserve.cli.servers.demo_scenes import SCENES
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.jobs.job import VIDEO_GENERATE, JobStatus
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.tenant import Role
from diffuserve.domain.text.timestamps import from_rfc3339
from diffuserve.private_files import private_umask
from diffuserve.settings import LOOPBACK, Settings
from diffuserve.telemetry.log_config import LogConfig

if TYPE_CHECKING:
    from PIL import Image

    from diffuserve.cli.servers.local_worker import Launch, ServerWithWorker
    from diffuserve.domain.resources.job import JobResource
    from diffuserve.sdk.async_client import AsyncClient

EXAMPLES = "Example:\n\n  diffuserve demo -o out/demo"

TENANTS = ("studio", "newsroom")  # served round-robin
_FIRST_MODEL = next(iter(SCENES))
_FOLDER = Path("out/demo")
_START_SECONDS = 120.0
_DATABASE = "diffuserve.db"
_SHOWN_FRAMES = 9  # frames of a clip on the sheet


@dataclass(frozen=True)
class FinishedJob:
    """A job of the demo in its final state; `path` is the file of its image or clip, if there is one."""

    number: int
    tenant: str
    job: "JobResource"
    path: Path | None


def demo(
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for images and clips.")] = _FOLDER,
    engine_command: options.EngineCommand = None,
) -> None:
    """Start a server, submit jobs of two tenants over HTTP to each bundled model, and show their results.

    The path of the contact sheet with all images, and frames of the clips, goes to stdout. The jobs stay in
    the folder `data` beside it, until the next demo: another server on it shows them in its gallery.
    """
    _check(output, engine_command)

    from diffuserve.cli.servers.event_loop import run
    from diffuserve.cli.servers.local_worker import Launch
    from diffuserve.telemetry.logs import configure_logs

    console, start = Console(stderr=True), time.perf_counter()
    output.mkdir(parents=True, exist_ok=True)
    log = output / "server.log"
    log.write_bytes(b"")
    configure_logs(LogConfig(), log.open("a", encoding="utf-8"))
    data = _empty_data_folder(output)
    with private_umask():
        finished = run(_demo(_settings(data), output, console, Launch(engine_command, log)))
    print_table(console, finished)
    succeeded = [result for result in finished if result.job.status is JobStatus.SUCCEEDED]
    console.print(
        f"{len(succeeded)} of {len(finished)} jobs succeeded; {time.perf_counter() - start:.1f} s in all",
        highlight=False,
    )
    if succeeded:
        print_pages(console, succeeded, data)
        echo(f"look at {save_sheet(succeeded, output)}")
    raise typer.Exit(0 if len(succeeded) == len(finished) else 1)


def _check(output: Path, engine_command: str | None) -> None:
    """Raise `InvalidParams`, or as `check_server` does, before anything is written or started."""
    from diffuserve.cli.preflight import check_server

    destination = Destination.parse(output)
    if destination.stem is not None:
        raise InvalidParams("output", str(output), "is the name of an image; give a folder")
    destination.check()
    check_server(_settings(output), engine_command)


def _empty_data_folder(output: Path) -> Path:
    """Return the folder of the demo's server, without the data of an earlier demo."""
    folder = output / "data"
    if (folder / _DATABASE).exists():  # nobody else's folder has one
        shutil.rmtree(folder)
    return folder


def _settings(folder: Path) -> Settings:
    """Return the settings of the demo's server, independent of the environment."""
    own = {"model": _FIRST_MODEL, "host": LOOPBACK, "port": 0, "data_dir": folder, "drain_seconds": 1.0}
    unset = ("database_url", "artifacts_url", "public_api_url", "public_base_url", "default_model")
    return Settings.with_options().model_copy(update={**own, **dict.fromkeys(unset)})


async def _demo(settings: Settings, output: Path, console: Console, launch: "Launch") -> list[FinishedJob]:
    """Start a server with an API key for each tenant, run the jobs of each model in turn, and stop it."""
    from diffuserve.cli.servers.local_worker import server_with_worker
    from diffuserve.sdk.async_client import AsyncClient
    from diffuserve.wiring.control import open_store
    from diffuserve.wiring.own_worker import wait_until_ready

    async with open_store(settings) as store:
        keys = {name: (await store.keys.create(Role.TENANT, tenant_id=name))[1] for name in TENANTS}
    async with AsyncExitStack() as stack:
        with console.status("starting a server and its worker"):
            running = await stack.enter_async_context(server_with_worker(settings, False, launch))
            await wait_until_ready(running.worker, running.server.plane.store, running.known, _START_SECONDS)
        address = running.server.address
        console.print(f"serving on {address}", style="dim", highlight=False)
        clients = [await stack.enter_async_context(AsyncClient(address, key)) for key in keys.values()]
        finished: list[FinishedJob] = []
        for model in SCENES:
            async with _worker_of(model, settings, running, launch, console):
                finished += await _run_scenes(model, finished, clients, output, console)
        return finished


@asynccontextmanager
async def _worker_of(
    model: str, settings: Settings, running: "ServerWithWorker", launch: "Launch", console: Console
) -> AsyncIterator[None]:
    """Run a worker of a model within the block, unless the server has started with it."""
    from diffuserve.cli.servers.local_worker import local_worker
    from diffuserve.wiring.own_worker import wait_until_ready

    if model == _FIRST_MODEL:
        yield
        return
    plane = running.server.plane
    known = {worker.id for worker in await plane.store.operations.workers()}
    own = settings.model_copy(update={"model": model})
    async with local_worker(running.server.address, own, launch) as (worker, task):
        with console.status(f"starting a worker of {model}"):
            worker.admit(plane.authenticator.admit(Role.WORKER))
            await wait_until_ready(task, plane.store, known, _START_SECONDS)
        yield


async def _run_scenes(
    model: str,
    before: Sequence[FinishedJob],
    clients: "Sequence[AsyncClient]",
    output: Path,
    console: Console,
) -> list[FinishedJob]:
    """Run the scenes of a model as jobs, all at the same time, alternating between tenants."""
    from diffuserve.cli.client.uploads import with_uploads
    from diffuserve.cli.client.watch import JobBars, follow

    images = {result.number: result.path for result in before if result.path is not None}
    requests = [
        (number, scene.kind, await with_uploads(clients[number % 2], scene.params(number, images), console))
        for number, scene in enumerate(SCENES[model], len(before))
    ]

    async def run(number: int, kind: str, params: GenerationParams, bars: JobBars) -> FinishedJob:
        tenant, client = TENANTS[number % 2], clients[number % 2]
        job = await follow(client, await client.submit(params, model=model, kind=kind), bars.show)
        if job.status is not JobStatus.SUCCEEDED:
            return FinishedJob(number, tenant, job, None)
        path = output / f"{number + 1:02}.{'mp4' if kind == VIDEO_GENERATE else 'png'}"
        await client.download(job.id, 0, path)
        return FinishedJob(number, tenant, job, path)

    with JobBars(console) as bars:
        return await asyncio.gather(*(run(*request, bars) for request in requests))


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
        table.add_row(_wish(job), result.tenant, _size(job), steps, *times)
    console.print(table)
    for result in finished:
        job = result.job
        if job.status is not JobStatus.SUCCEEDED:
            reason = f": {job.error.message}" if job.error else ""
            console.print(f"{job.final_prompt!r} {job.status}{reason}", style="red")


def print_pages(console: Console, finished: Sequence[FinishedJob], data: Path) -> None:
    """Print how to see the jobs in a browser: the demo's server has ended, another one shows its data."""
    address = Settings.with_options().server.rstrip("/")
    console.print(f"\nsee them in a browser: diffuserve serve --no-auth --data-dir {data}")
    console.print(f"  {address}/gallery", highlight=False)
    for result in finished:
        page = f"{address}/gallery/{result.job.id}"
        console.print(f"  {page}  {_wish(result.job)}", highlight=False, soft_wrap=True)


def save_sheet(finished: Sequence[FinishedJob], folder: Path) -> Path:
    """Write a contact sheet of all images into `folder`; return its path."""
    from diffuserve.media.contact_sheet import contact_sheet
    from diffuserve.media.image_file import save_image

    images = [
        (_picture(result.path), f"{_wish(result.job)} ({_size(result.job)})")
        for result in finished
        if result.path is not None
    ]
    path = folder / "contact_sheet.png"
    save_image(contact_sheet(images), path, {})
    return path


def _picture(path: Path) -> "Image.Image":
    """Return the image in a file; for a clip, a grid of some of its frames."""
    from PIL import Image

    if path.suffix != ".mp4":
        return Image.open(path)
    from diffuserve.media.sprite_sheet import SpriteSheet
    from diffuserve.media.video_writer import read_frames

    frames = list(read_frames(path))
    sheet = SpriteSheet(_SHOWN_FRAMES)
    sheet.add(frames[index * (len(frames) - 1) // (_SHOWN_FRAMES - 1)] for index in range(_SHOWN_FRAMES))
    return sheet.image()


def _wish(job: "JobResource") -> str:
    """Return the prompt with the scene's other options."""
    negative, image = job.input.get("negative_prompt"), job.input.get("image")
    names = [f", with {adapter['name']}" for adapter in job.input.get("adapters") or ()]
    rest = (f", not {negative}" if negative else "", ", from an image" if image else "", *names)
    return job.final_prompt + "".join(rest)


def _size(job: "JobResource") -> str:
    return f"{job.input['width']}x{job.input['height']}"


def _seconds(start: str | None, end: str | None) -> str:
    if start is None or end is None:
        return ""
    return f"{(from_rfc3339(end) - from_rfc3339(start)).total_seconds():.2f}"
