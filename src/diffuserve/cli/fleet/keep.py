"""What the fleets of all cluster managers share: their options, and keeping, showing and ending one."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from diffuserve.agent.spot.base import Spot
from diffuserve.cli import options
from diffuserve.cli.display.echo import echo
from diffuserve.cli.display.results import results
from diffuserve.cli.panels import FLEET
from diffuserve.domain.errors import (
    DiffuserveError,
    Forbidden,
    InvalidParams,
    ServerRefused,
    ServerUnavailable,
    Unauthorized,
)
from diffuserve.fleet import holder
from diffuserve.fleet.control_plane import PoolOfModel
from diffuserve.fleet.launcher import FleetWorkerList, Launcher
from diffuserve.fleet.loop import FleetLoop, drained
from diffuserve.fleet.plan import FleetBounds
from diffuserve.media.file_names import slug
from diffuserve.models.folders.folder import find_local_model
from diffuserve.models.folders.names import full_name
from diffuserve.settings import Settings
from diffuserve.stop_signals import call_on_stop_signals
from diffuserve.telemetry.logs import configure_logs

log = logging.getLogger(__name__)

MOST = 1_000  # elements of an array of jobs in most clusters of Slurm
_STOP_MARGIN: Final = 60.0  # seconds beside a worker's drain, after which what is left of a fleet is ended
_KEY_REMEDY: Final = (
    "give a key of the role monitor in DIFFUSERVE_API_KEY; `diffuserve keys create --role monitor` makes one"
)
WORKER_SETTINGS = tuple(name for name in options.WORKER_SETTINGS if name != "gpus")
SETTINGS = ("server", "api_key", *WORKER_SETTINGS)


class FleetAction(StrEnum):
    """What is done with a fleet."""

    KEEP = "keep"
    STATUS = "status"
    STOP = "stop"


def _option(text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel=FLEET, **more)


Name = Annotated[str, _option("Name of the fleet. [default: the model's]", show_default=False)]
Least = Annotated[int, _option("Least workers.", min=0, max=MOST)]
Most = Annotated[int, _option("Most workers.", min=1, max=MOST)]
Gpus = Annotated[
    float | None,
    _option("GPUs of a worker; 0 for one on CPUs. [default: 1, and 0 with --device cpu]", min=0),
]
LeaveWhenIdle = Annotated[
    float,
    _option("A worker that is not needed ends after so long without a job.", min=1, metavar="SECONDS"),
]
WorkerKeyFile = Annotated[
    Path | None,
    _option("File on the nodes with the workers' API key. [default: their environment has it]"),
]
Pool = Annotated[
    str, _option("Id of the model at the control plane. [default: that of --model]", show_default=False)
]
Every = Annotated[float, _option("Seconds between two looks.", min=0.1)]


def gpus_of(settings: Settings, gpus: float | None) -> float:
    """Return the GPUs of a worker. Raise `InvalidParams` for one and a half."""
    if gpus is None:
        return 0.0 if settings.engine_process.device == "cpu" else 1.0
    if gpus > 1 and gpus != int(gpus):
        raise InvalidParams("gpus_per_worker", gpus, "must be a whole number, or a share of one GPU below 1")
    return gpus


def bounds_of(least: int, most: int) -> FleetBounds:
    """Return the bounds of a fleet. Raise `InvalidParams` if they contradict each other."""
    if least > most:
        raise InvalidParams("min", least, f"must be at most --max, which is {most}")
    return FleetBounds(least, most)


def fleet_name(settings: Settings, name: str) -> str:
    """Return the name of a fleet, of small letters, digits and dashes."""
    return slug(name or _id_of(settings))


def pool_of(settings: Settings, pool: str, address: Any) -> PoolOfModel:
    """Return what tells how many workers the model should have, at the control plane of an address."""
    is_spot = settings.worker.spot is not Spot.NONE
    return PoolOfModel(address, settings.api_key, pool or _id_of(settings), is_spot)


def _id_of(settings: Settings) -> str:
    """Return a model's id, also if this machine does not have it."""
    model = settings.engine_process.model
    with suppress(DiffuserveError):
        if (found := find_local_model(model)) is not None:
            return found.name
    return full_name(model).partition("@")[0].rstrip("/").rpartition("/")[2]


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """What the options of a fleet say of each worker, beside the settings."""

    fleet: str
    gpus: float
    leave_when_idle: float
    least: int
    key_file: Path | None
    engine_command: str | None

    def arguments(self, settings: Settings) -> tuple[str, ...]:
        """Return the arguments of `diffuserve worker` for what was given, but its server and its name."""
        return (
            *options.arguments_for(settings, *given_settings(settings)),
            *(("--gpus", f"{self.gpus:.0f}") if self.gpus > 1 else ()),
            *("--label", f"fleet={self.fleet}"),
            *("--leave-when-idle", f"{self.leave_when_idle:g}", "--leave-at-least", f"{self.least}"),
            *(() if self.key_file is None else ("--key-file", str(self.key_file))),
            *(() if self.engine_command is None else ("--engine-command", self.engine_command)),
        )


def given_settings(settings: Settings) -> Sequence[str]:
    """Return the model, and those of the workers' settings that options and the environment give."""
    return ["model", *(name for name in WORKER_SETTINGS[1:] if name in settings.model_fields_set)]


def check_pool(pool: PoolOfModel, bounds: FleetBounds) -> None:
    """Raise as `PoolOfModel.size`, and `InvalidParams` for a model of which nothing can be wanted."""
    try:
        size = asyncio.run(pool.size())
    except ServerUnavailable as error:
        remedy = "start the control plane by `diffuserve api`, or give its URL with --server"
        raise ServerUnavailable(f"{error}; {remedy}") from error
    except ServerRefused as error:
        raise ServerRefused(f"{error}; give the control plane's URL with --server") from error
    except (Unauthorized, Forbidden) as error:
        raise Forbidden(f"{error}; {_KEY_REMEDY}") from error
    if size is None and bounds.least == 0:
        remedy = "no worker has offered the model yet, so that nobody can ask for it; give --min 1"
        raise InvalidParams("min", 0, remedy)


def keep(
    launcher: Launcher, pool: PoolOfModel, bounds: FleetBounds, every: float, settings: Settings, file: Path
) -> None:
    """Keep a fleet until a signal ends it; its workers then drain. Raise `InvalidParams`."""

    async def run() -> None:
        stop = asyncio.Event()
        call_on_stop_signals(stop.set)
        await FleetLoop(launcher, pool.size, bounds, every).run(stop)
        log.info("the fleet ends: its workers drain")
        await _drained(launcher, settings)

    configure_logs(settings.logs)
    with holder.held(file):
        asyncio.run(run())


def stop_fleet(launcher: Launcher, settings: Settings, file: Path) -> None:
    """End the process that keeps a fleet, and drain all that is left of it."""
    holder.stop(file, settings.worker.drain_seconds + 2 * _STOP_MARGIN)
    with holder.held(file):
        asyncio.run(_drained(launcher, settings))
    echo(f"{file.name} has ended")


def show(launcher: Launcher, as_json: bool) -> None:
    """Print the workers of a fleet as their cluster manager knows them."""
    workers = launcher.workers()
    if as_json:
        from diffuserve.client.codec import encode

        echo(encode(FleetWorkerList(data=tuple(workers))))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("name", "state", "detail"):
        table.add_column(name, no_wrap=True)
    for worker in workers:
        table.add_row(worker.name, str(worker.placement), worker.detail)
    results().print(table)


async def _drained(launcher: Launcher, settings: Settings) -> None:
    try:
        num_killed = await drained(launcher, settings.worker.drain_seconds + _STOP_MARGIN)
    except ServerUnavailable as error:
        remedy = "workers may be left: `stop` the fleet once its cluster manager responds"
        raise ServerUnavailable(f"{error}; {remedy}") from error
    if num_killed:
        log.warning("%d workers did not leave in time, and were ended", num_killed)
