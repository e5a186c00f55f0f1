"""`diffuserve fleet ray`: workers as actors of Ray."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffuserve.cli import options
from diffuserve.cli.fleet import keep
from diffuserve.cli.fleet.keep import FleetAction
from diffuserve.cli.panels import FLEET, MANY_GPUS
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.extras import Extra, missing_module
from diffuserve.fleet import holder
from diffuserve.settings import Settings

if TYPE_CHECKING:
    from diffuserve.fleet.ray_worker import RayWorkerSetup

EXAMPLES = """
Examples:

  diffuserve fleet ray --server http://10.0.0.1:8000 --model flux-schnell --min 1 --max 8

  diffuserve fleet ray --model /models/FLUX.1-dev --gpus-per-worker 4 --max 2 --spot auto

  diffuserve fleet ray status --model flux-schnell

  diffuserve fleet ray stop --model flux-schnell
"""


@options.takes_settings(*keep.SETTINGS)
def on_ray(  # noqa: PLR0913 (a command has as many arguments as options)
    settings: Settings,
    action: Annotated[
        FleetAction, typer.Argument(help="keep it, show its workers, or end it.", show_default=True)
    ] = FleetAction.KEEP,
    name: keep.Name = "",
    min: keep.Least = 1,
    max: keep.Most = 4,
    gpus_per_worker: keep.Gpus = None,
    cpus_per_worker: Annotated[
        float, typer.Option(min=0, help="CPUs of a worker.", rich_help_panel=FLEET)
    ] = 1.0,
    nodes_per_worker: Annotated[
        int, typer.Option(min=1, help="Nodes that form one worker.", rich_help_panel=MANY_GPUS)
    ] = 1,
    node_secret_file: Annotated[
        Path | None,
        typer.Option(
            help="File on each node with what proves that nodes form one worker. [default: none]",
            rich_help_panel=MANY_GPUS,
        ),
    ] = None,
    address: Annotated[
        str,
        typer.Option(
            envvar="RAY_ADDRESS",
            help="HOST:PORT of the cluster's head. [default: this machine's]",
            rich_help_panel=FLEET,
            show_default=False,
        ),
    ] = "",
    grows: Annotated[
        bool,
        typer.Option(
            "--grows",
            help="The cluster has an autoscaler, and may have no node for a worker yet. [default: off]",
            rich_help_panel=FLEET,
        ),
    ] = False,
    leave_when_idle: keep.LeaveWhenIdle = 60.0,
    worker_key_file: keep.WorkerKeyFile = None,
    pool: keep.Pool = "",
    every: keep.Every = 5.0,
    engine_command: options.EngineCommand = None,
    as_json: options.Json = False,
) -> None:
    """Keep as many workers on a cluster of Ray as the control plane asks for, until it is stopped.

    SIGTERM or Ctrl-C ends the fleet: its workers finish what they can in time, and leave.
    """
    _check_given(nodes_per_worker, node_secret_file)
    worker = keep.WorkerOptions(
        fleet=keep.fleet_name(settings, name),
        gpus=keep.gpus_of(settings, gpus_per_worker),
        leave_when_idle=leave_when_idle,
        least=min,
        key_file=worker_key_file,
        engine_command=engine_command,
    )
    bounds = keep.bounds_of(min, max)
    model_pool = keep.pool_of(settings, pool, lambda: settings.server)
    if action is FleetAction.KEEP:
        keep.check_pool(model_pool, bounds)

    from diffuserve.fleet.ray_cluster import check_cluster, connect  # it imports Ray, which takes a second
    from diffuserve.fleet.ray_launcher import RayLauncher

    setup = _setup_of(settings, worker, cpus_per_worker, nodes_per_worker, node_secret_file)
    connect(address or None)
    launcher, file = RayLauncher(setup), holder.file_of("ray", setup.fleet)
    if action is FleetAction.STATUS:
        keep.show(launcher, as_json)
    elif action is FleetAction.STOP:
        keep.stop_fleet(launcher, settings, file)
    else:
        check_cluster(setup, grows)
        keep.keep(launcher, model_pool, bounds, every, settings, file)


def _check_given(nodes: int, node_secret_file: Path | None) -> None:
    """Raise `InvalidParams` without Ray, and for workers of several nodes that prove nothing."""
    if missing_module(Extra.RAY) is not None:
        raise InvalidParams("fleet", "ray", f"needs Ray, which is not installed; {Extra.RAY.remedy}")
    if nodes > 1 and node_secret_file is None:
        remedy = "nodes that form one worker prove it by --node-secret-file FILE, which each of them has"
        raise InvalidParams("node_secret_file", None, remedy)


def _setup_of(
    settings: Settings, worker: keep.WorkerOptions, cpus: float, nodes: int, node_secret_file: Path | None
) -> "RayWorkerSetup":
    from diffuserve.fleet.ray_worker import RayWorkerSetup

    return RayWorkerSetup(
        fleet=worker.fleet,
        arguments=(*worker.arguments(settings), "--server", settings.server),
        settings=_settings_of(settings, worker.gpus, worker.key_file),
        gpus=worker.gpus,
        cpus=cpus,
        nodes=nodes,
        node_secret_file=node_secret_file,
        idle_seconds=worker.leave_when_idle,
        least=worker.least,
        engine_command=tuple(shlex.split(worker.engine_command or "")),
        drain_seconds=settings.worker.drain_seconds,
    )


def _settings_of(settings: Settings, gpus: float, key_file: Path | None) -> Mapping[str, object]:
    """Return what options and the environment say of a worker; a node's own environment has the rest."""
    given = {name: getattr(settings, name) for name in keep.given_settings(settings)}
    own = {"server": settings.server, "api_key_file": key_file, "gpus": max(1, int(gpus))}
    return {**given, **own}
