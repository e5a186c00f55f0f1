"""`diffuserve serve`: the control plane and one worker, on this machine."""

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from diffuserve.cli import options
from diffuserve.cli.data_folder import locked
from diffuserve.private_files import private_umask
from diffuserve.settings import Settings
from diffuserve.version import __version__

if TYPE_CHECKING:
    from diffuserve.cli.local_worker import Launch
    from diffuserve.cli.server import RunningServer

EXAMPLES = """
Examples:

  diffuserve serve

  diffuserve serve --model black-forest-labs/FLUX.1-schnell --device cuda:0 --port 9000
"""


@options.takes_settings(
    *("host", "port", "data_dir", "database_url", "prompt_filter"), *options.WORKER_OPTIONS
)
def serve(
    settings: Settings, no_auth: options.NoAuth = False, engine_command: options.EngineCommand = None
) -> None:
    """Serve a model on this machine: API, queue and one worker.

    A server that is restarted on the same data folder continues its jobs, however it ended. Its address
    goes to stdout, on one line, once it accepts requests.
    """
    from diffuserve.cli.preflight import check_server

    check_server(settings, engine_command)

    from diffuserve.cli.event_loop import run
    from diffuserve.cli.local_worker import Launch
    from diffuserve.cli.logs import log_to_stderr

    log_to_stderr()
    with private_umask(settings.data_access), locked(settings.data_dir, settings.data_access):
        code = run(_serve(settings, no_auth, Launch(engine_command)))
    raise typer.Exit(code)


async def _serve(settings: Settings, no_auth: bool, launch: "Launch") -> int:
    from diffuserve.cli.event_loop import stop_on_signals
    from diffuserve.cli.local_worker import local_worker, wait_until_ready
    from diffuserve.cli.server import running_server

    console, stop = Console(stderr=True, highlight=False, soft_wrap=True), stop_on_signals()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running_server(settings, no_auth))
        known = {worker.id for worker in await server.plane.store.operations.workers()}
        console.print(
            f"diffuserve {__version__} on {server.listens_on} · data in {settings.data_dir}", markup=False
        )
        print(server.address, flush=True)
        worker = await stack.enter_async_context(local_worker(server, settings, launch))
        ready = asyncio.create_task(wait_until_ready(worker, server.plane.store, known))
        ready.add_done_callback(lambda task: _invite(task, server, settings.engine_process.model, console))
        stack.callback(ready.cancel)
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([stopping, worker], return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            return worker.result()
        console.print("finishing running jobs; a second Ctrl-C stops at once, and loses no job either")
        return 0


def _invite(ready: asyncio.Task[None], server: "RunningServer", model: str, console: Console) -> None:
    if not ready.cancelled() and ready.exception() is None:
        console.print(f"{model} is ready. Try, from another terminal:", markup=False)
        console.print(_invitation(server), markup=False)


def _invitation(server: "RunningServer") -> str:
    is_default = server.address == Settings().server
    place = "" if is_default else f" --server {server.address}"
    key = " -H 'authorization: Bearer KEY'" if server.plane.has_auth else ""
    return (
        f'  diffuserve submit "a red circle on a white background" -o circle.png{place}\n'
        f"  curl {server.address}/generate{key} -H 'content-type: application/json' "
        """-d '{"prompt": "a red circle"}'"""
    )
