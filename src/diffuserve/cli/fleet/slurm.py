"""`diffuserve fleet slurm`: workers as jobs of Slurm."""

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from diffuserve.cli import options
from diffuserve.cli.fleet import keep
from diffuserve.cli.fleet.keep import FleetAction
from diffuserve.cli.panels import FLEET
from diffuserve.domain.errors import InvalidParams
from diffuserve.fleet import holder
from diffuserve.fleet.control_plane import address_in
from diffuserve.fleet.launcher import WorkerSetup
from diffuserve.fleet.slurm import DRAIN_SECONDS, SlurmLauncher, batch_script
from diffuserve.settings import Settings

EXAMPLES = """
Examples:

  diffuserve fleet slurm --model flux-schnell --max 20 -- --partition=gpu --time=12:00:00

  diffuserve fleet slurm --server-file ~/control-plane --gpus-per-worker 4 -- --partition=gpu --exclusive

  diffuserve fleet slurm status --model flux-schnell

  diffuserve fleet slurm stop --model flux-schnell
"""


@options.takes_settings(*keep.SETTINGS)
def on_slurm(  # noqa: PLR0913 (a command has as many arguments as options)
    settings: Settings,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[status|stop] [-- SBATCH_OPTIONS]",
            help="Show its workers or end it; keep it with these options of sbatch.",
        ),
    ] = None,
    name: keep.Name = "",
    min: keep.Least = 1,
    max: keep.Most = 4,
    gpus_per_worker: keep.Gpus = None,
    server_file: Annotated[
        Path | None,
        typer.Option(
            help="File on a shared folder with the control plane's URL, for one that is a job too. "
            "[default: none]",
            rich_help_panel=FLEET,
        ),
    ] = None,
    command: Annotated[
        str,
        typer.Option(
            help="Command on the nodes, such as one that enters a container. [default: this program]",
            rich_help_panel=FLEET,
            show_default=False,
        ),
    ] = "",
    leave_when_idle: keep.LeaveWhenIdle = 60.0,
    worker_key_file: keep.WorkerKeyFile = None,
    pool: keep.Pool = "",
    every: keep.Every = 5.0,
    engine_command: options.EngineCommand = None,
    as_json: options.Json = False,
) -> None:
    """Keep as many workers on a cluster of Slurm as the control plane asks for, until it is stopped.

    SIGTERM or Ctrl-C ends the fleet: its workers finish what they can in time, and leave. They leave 20 s for
    that, if --drain-seconds says nothing else.
    """
    action, sbatch_options = action_of(words or ())
    settings = _with_drain(settings)
    worker = keep.WorkerOptions(
        fleet=keep.fleet_name(settings, name),
        gpus=keep.gpus_of(settings, gpus_per_worker),
        leave_when_idle=leave_when_idle,
        least=min,
        key_file=worker_key_file,
        engine_command=engine_command,
    )
    setup = WorkerSetup(
        fleet=worker.fleet,
        arguments=worker.arguments(settings),
        gpus=worker.gpus,
        drain_seconds=settings.worker.drain_seconds,
    )
    program = shlex.split(command) or [sys.executable, "-m", "diffuserve"]
    script = batch_script(setup, program, server_file.absolute() if server_file else settings.server)
    launcher, file = SlurmLauncher(setup, script, sbatch_options), holder.file_of("slurm", setup.fleet)
    if action is FleetAction.STATUS:
        keep.show(launcher, as_json)
    elif action is FleetAction.STOP:
        keep.stop_fleet(launcher, settings, file)
    else:
        bounds, address = keep.bounds_of(min, max), _address_of(settings, server_file)
        model_pool = keep.pool_of(settings, pool, address)
        keep.check_pool(model_pool, bounds)
        if not command and engine_command is None:  # the nodes run this program, with what it finds here
            from diffuserve.cli.preflight import check_worker_elsewhere

            check_worker_elsewhere(settings.worker.engine_processes, int(setup.gpus) or 1)
        launcher.check(max, address())
        keep.keep(launcher, model_pool, bounds, every, settings, file)


def action_of(words: Sequence[str]) -> tuple[FleetAction, Sequence[str]]:
    """Return what is to be done, and options of `sbatch`. Raise `InvalidParams` for other words."""
    if not words or words[0].startswith("-"):
        return FleetAction.KEEP, words
    if words[0] not in list(FleetAction) or len(words) > 1:
        remedy = "status and stop stand alone; options of sbatch come after --, each as --name=value"
        raise InvalidParams("fleet", " ".join(words), remedy)
    return FleetAction(words[0]), ()


def _with_drain(settings: Settings) -> Settings:
    """Return the settings of workers that have drained before Slurm ends them for good."""
    if "drain_seconds" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"drain_seconds": DRAIN_SECONDS})


def _address_of(settings: Settings, server_file: Path | None) -> Callable[[], str]:
    return (lambda: settings.server) if server_file is None else (lambda: address_in(server_file))
