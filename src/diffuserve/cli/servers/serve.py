"""`diffuserve serve`: the control plane and one worker, on this machine."""

import asyncio
import gc
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import typer

from diffuserve.cli import options
from diffuserve.cli.display.console import Console
from diffuserve.domain.errors import InvalidModel, ServerUnavailable
from diffuserve.private_files import private_umask
from diffuserve.settings import Settings
from diffuserve.version import __version__
from diffuserve.wiring.data_folder import locked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diffuserve.cli.servers.local_worker import Launch, ServerWithWorker
    from diffuserve.cli.servers.server import RunningServer
    from diffuserve.domain.workers.worker import ModelOffer
    from diffuserve.protocol.config import EngineProcessConfig

EXAMPLES = """
Examples:

  diffuserve serve

  diffuserve serve --model black-forest-labs/FLUX.1-schnell --device cuda:0 --port 9000

  diffuserve serve --model /models/FLUX.1-dev --data-dir /var/lib/diffuserve --host 0.0.0.0
"""


@options.takes_settings(
    *("host", "port", "doors", "data_dir", "database_url", "prompt_filter", "tiers", "model_aliases"),
    *options.WORKER_SETTINGS,
)
def serve(
    settings: Settings, no_auth: options.NoAuth = False, engine_command: options.EngineCommand = None
) -> None:
    """Serve one or several models on this machine: API, queue and one worker.

    A server that is restarted on the same data folder continues its jobs, even after a crash. Its address
    goes to stdout, on one line, once it accepts requests: jobs wait in the queue while the model loads.
    """
    from diffuserve.cli.preflight import check_server

    check_server(settings, engine_command)

    gc.disable()  # until it listens: imported modules stay, and scanning them takes long
    from diffuserve.cli.servers.event_loop import run
    from diffuserve.cli.servers.local_worker import Launch
    from diffuserve.telemetry.logs import configure_logs

    configure_logs(settings.logs)
    with private_umask(settings.data_access), locked(settings.data_dir, settings.data_access):
        code = run(_serve(settings, no_auth, Launch(engine_command)))
    raise typer.Exit(code)


async def _serve(settings: Settings, no_auth: bool, launch: "Launch") -> int:
    from diffuserve.cli.servers.event_loop import stop_on_signals
    from diffuserve.cli.servers.local_worker import server_with_worker

    console, stop = Console(stderr=True, highlight=False, soft_wrap=True), stop_on_signals()
    offers = [] if launch.engine_command is not None else _local_offers(settings.worker.engine_processes)
    async with server_with_worker(settings, no_auth, launch) as running:
        for offer in offers:
            await running.server.plane.expect(offer)
        address = running.server.listens_on
        console.print(f"diffuserve {__version__} on {address} · data in {settings.data_dir}")
        print(running.server.address, flush=True)
        loading = asyncio.create_task(_show_loading(running, settings.engine_process.model, console))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([stopping, running.worker], return_when=asyncio.FIRST_COMPLETED)
        loading.cancel()
        if not stop.is_set():
            await _report_end(running, settings, console)
            return running.worker.result()
        console.print("finishing running jobs; a second Ctrl-C stops at once, and loses no job either")
        return 0


def _local_offers(configs: "Sequence[EngineProcessConfig]") -> "list[ModelOffer]":
    """Return the worker's future offers of models on this machine, without broken ones."""
    from diffuserve.models.folders.companions import companions_of
    from diffuserve.models.registry import read_local_offer
    from diffuserve.modelstore.store import is_stored

    offers = []
    for config in configs:
        with suppress(InvalidModel):
            if not is_stored(config.model, config.stored):
                offer = read_local_offer(
                    config.model, companions_of(config.controlnets, config.image_prompter)
                )
                offers += [] if offer is None else [offer]
    return offers


async def _show_loading(running: "ServerWithWorker", model: str, console: Console) -> None:
    """Show the progress of loading the model; once it is loaded, say how to use the server."""
    import psutil

    from diffuserve.cli.servers.load_display import LoadDisplay
    from diffuserve.wiring.own_worker import wait_until_ready

    server = running.server
    display = LoadDisplay(console, model, time.time() - psutil.Process().create_time())
    try:
        await wait_until_ready(running.worker, server.plane.store, running.known, on_look=display.show)
    except ServerUnavailable:
        return  # the task that waits for the worker reports its end
    finally:
        display.end()
    console.print(f"{model} is ready at {server.address} after {display.seconds:.1f} s.")
    console.print("Open that address in a browser, or try, from another terminal:")
    console.print(_invitation(server))


async def _report_end(running: "ServerWithWorker", settings: Settings, console: Console) -> None:
    """Report that the server ends because its worker cannot start, and how many jobs stay queued."""
    lanes = await running.server.plane.store.operations.lanes()
    message = f"error: {settings.engine_process.model} cannot be served, for the reason above"
    if num_queued := sum(lane.num_ready for lane in lanes):
        jobs = "1 queued job waits" if num_queued == 1 else f"{num_queued} queued jobs wait"
        message += f"; {jobs} in {settings.data_dir} for the next server on it"
    console.print(message, style="red")


def _invitation(server: "RunningServer") -> str:
    is_default = server.address == Settings().server
    place = "" if is_default else f" --server {server.address}"
    key = " -H 'authorization: Bearer KEY'" if server.plane.has_auth else ""
    return (
        f'  diffuserve submit "a red circle on a white background" -o circle.png{place}\n'
        f"  curl {server.address}/generate{key} -H 'content-type: application/json' "
        """-d '{"prompt": "a red circle"}'"""
    )
