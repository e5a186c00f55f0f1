"""`diffuserve stop`: end the server that runs on a data folder of this machine."""

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from diffuserve.cli import options
from diffuserve.cli.display.console import Console
from diffuserve.cli.exit_codes import FAILED
from diffuserve.domain.errors import InvalidParams
from diffuserve.settings import Settings
from diffuserve.wiring.data_folder import servers_on

EXAMPLES = """
Examples:

  diffuserve stop

  diffuserve stop --data-dir /var/lib/diffuserve --now

  diffuserve stop --process 4711
"""

_AFTER_ITS_JOBS = (signal.SIGTERM,)
_AT_ONCE = (signal.SIGINT, signal.SIGINT)  # as a second Ctrl-C; a second SIGTERM says nothing new
_LOOK_SECONDS = 0.1


@options.takes_settings("data_dir")
def stop(
    settings: Settings,
    now: Annotated[
        bool, typer.Option("--now", help="Do not finish running jobs: the next server on it draws them.")
    ] = False,
    process: Annotated[
        int | None,
        typer.Option(help="Process of the server, of several on PostgreSQL. [default: the only one]"),
    ] = None,
) -> None:
    """Stop `diffuserve serve` or `api` on this machine: running jobs are finished, and queued ones stay.

    On PostgreSQL several may use a data folder: then it names them, and --process chooses one. It waits until
    the server has ended. Ctrl-C ends the waiting, not the server.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    found = servers_on(settings.data_dir)
    if not found:
        console.print(f"no server is running on {settings.data_dir}; give the --data-dir that it has")
        raise typer.Exit(FAILED)
    chosen = chosen_of(found, process, settings.data_dir)
    send(chosen, _AT_ONCE if now else _AFTER_ITS_JOBS)
    with console.status(f"process {chosen} ends" + ("" if now else ", after its running jobs")):
        while chosen in servers_on(settings.data_dir):
            time.sleep(_LOOK_SECONDS)
    console.print(f"the server on {settings.data_dir} has stopped; its jobs are there for the next one")


def send(process: int, signals: Sequence[signal.Signals]) -> None:
    """Send signals one after the other, as far as the process has not ended before."""
    with suppress(ProcessLookupError):
        for number in signals:
            os.kill(process, number)
            time.sleep(_LOOK_SECONDS)


def chosen_of(found: Sequence[int], wanted: int | None, folder: Path) -> int:
    """Return the wanted process, or else the only one. Raise `InvalidParams` if there is no such."""
    processes = ", ".join(map(str, found))
    if wanted is None and len(found) > 1:
        raise InvalidParams("process", None, f"several servers run on {folder}; choose from {processes}")
    if wanted is not None and wanted not in found:
        raise InvalidParams("process", wanted, f"no server on {folder}; there is {processes}")
    return found[0] if wanted is None else wanted
