"""`diffuserve stop`: end the server that runs on a data folder of this machine."""

import os
import signal
import time
from typing import Annotated

import typer

from diffuserve.cli import options
from diffuserve.cli.display.console import Console
from diffuserve.cli.exit_codes import FAILED
from diffuserve.settings import Settings
from diffuserve.wiring.data_folder import holder_of

EXAMPLES = """
Examples:

  diffuserve stop

  diffuserve stop --data-dir /var/lib/diffuserve --now
"""

_LOOK_SECONDS = 0.1


@options.takes_settings("data_dir")
def stop(
    settings: Settings,
    now: Annotated[
        bool, typer.Option("--now", help="Do not finish running jobs: the next server on it draws them.")
    ] = False,
) -> None:
    """Stop `diffuserve serve` or `api` on this machine: running jobs are finished, and queued ones stay.

    It waits until the server has ended. Ctrl-C ends the waiting, not the server.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    process = holder_of(settings.data_dir)
    if process is None:
        console.print(f"no server is running on {settings.data_dir}; give the --data-dir that it has")
        raise typer.Exit(FAILED)
    for _ in range(2 if now else 1):  # as a second Ctrl-C does
        os.kill(process, signal.SIGTERM)
        time.sleep(_LOOK_SECONDS)
    with console.status(f"process {process} ends" + ("" if now else ", after its running jobs")):
        while holder_of(settings.data_dir) == process:
            time.sleep(_LOOK_SECONDS)
    console.print(f"the server on {settings.data_dir} has stopped; its jobs are there for the next one")
