"""One trace of jobs, node deaths and a spot notice on Ray, on Slurm and, simulated, on Kubernetes.

    python -m benchmarks fleet-engines            # writes results/fleet-engines_LABEL_DATE and the plot
    python -m benchmarks fleet-engines --quick    # a short trace; writes nothing

Ray and Slurm run for real, one after the other, each as a cluster of its own on this machine: `diffuserve
fleet` keeps two to three workers there, which draw with the bundled model. Ray gets an environment of its
own, Slurm needs its Debian packages and root; what cannot be had is left out. Kubernetes is the simulator of
`autoscaling`, with the seconds that the real workers took. Nothing else should run meanwhile.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from benchmarks.control.processes import Program, adopt_orphans, api_command, free_port, serving_environment
from benchmarks.fleet.figures import Course, FleetFigures, figures_of
from benchmarks.fleet.looks import PlayedFleet
from benchmarks.fleet.manager import LEAVE_SECONDS, NOTICE_SECONDS, ClusterManager
from benchmarks.fleet.on_ray import RAY, on_ray
from benchmarks.fleet.own_seconds import OwnSeconds
from benchmarks.fleet.playing import play
from benchmarks.fleet.plot import plotted
from benchmarks.fleet.simulated import FleetSettings, Measured, simulated
from benchmarks.fleet.slurm import slurm
from benchmarks.fleet.trace import FULL, LEAST, MOST, QUICK, LossKind, Trace, trace
from benchmarks.serve.load import running
from benchmarks.shared import workloads
from benchmarks.shared.places import IMAGES, RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_report
from diffuserve.bench.machine_load import MachineLoad

SETTINGS = FleetSettings(
    target_seconds=1.0, lease_seconds=8.0, notice_seconds=NOTICE_SECONDS, leave_seconds=LEAVE_SECONDS
)
PLOT = IMAGES / "fleet-engines.svg"
_HEARTBEAT_SECONDS = 2.0
_VARIABLES = {
    **serving_environment(SETTINGS.lease_seconds, _HEARTBEAT_SECONDS),
    "DIFFUSERVE_SCALE_TARGET_SECONDS": str(SETTINGS.target_seconds),
    "OMP_NUM_THREADS": "1",
}
_STOP_SECONDS = 5.0
_SHOWN = 2_000  # characters of a log


def main() -> None:
    adopt_orphans()  # daemons of Slurm and Ray, and what their nodes leave
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that all is ended here too
    arguments = parse_arguments()
    shape = QUICK if arguments.quick else FULL
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder:  # short: sockets of Ray lie in it
        os.environ["TMPDIR"] = folder  # what killed workers leave there goes with it
        own = OwnSeconds()
        with own.watched():
            played = play_all(Path(folder), trace(shape, arguments.seed), arguments.only)
        load = own.load()
    if not played:
        sys.exit("neither Ray nor Slurm can be had here")
    courses = {name: fleet.course for name, fleet in played.items()}
    measured = measured_of(played)
    courses |= simulated(trace(shape, arguments.seed), measured, SETTINGS, arguments.seed)
    figures = {name: figures_of(course) for name, course in courses.items()}
    text = markdown_table("Fleets", [row(name, each) for name, each in figures.items()])
    print(text)
    if not (arguments.quick or arguments.only):
        write(arguments.label, figures, courses, measured, text, load)


def play_all(folder: Path, played: Trace, only: str | None) -> dict[str, PlayedFleet]:
    """Play the trace on each cluster manager that can be had, each alone in its turn."""
    num_nodes = MOST + len(played.losses)
    managers: dict[str, Callable[[Path], AbstractContextManager[ClusterManager]]] = {
        "Slurm": lambda folder: slurm(folder, num_nodes),
        "Ray": lambda folder: on_ray(folder, num_nodes, _VARIABLES),
    }
    found = {}
    for name, opened in managers.items():
        if only in (None, name.lower()):
            own = folder / name.lower()
            own.mkdir()
            begun = time.monotonic()
            print(f"{name}: a cluster of {num_nodes} nodes starts", flush=True)
            try:
                with alone(), logs_of_failure(own), opened(own) as manager:
                    print(f"{name}: it is there after {time.monotonic() - begun:.0f} s", flush=True)
                    found[name] = asyncio.run(play_beside_server(played, manager, own))
            except pytest.skip.Exception as error:
                print(f"left out: {error}", flush=True)
            print(f"{name}: {time.monotonic() - begun:.0f} s in all, and nothing is left", flush=True)
    return found


async def play_beside_server(played: Trace, manager: ClusterManager, folder: Path) -> PlayedFleet:
    port = free_port()
    command = [*api_command(port, folder / "data", None), "--prompt-filter", "none"]
    async with running(Program("api", command, _VARIABLES, folder / "api.log"), port, "/healthz"):
        return await play(played, manager, f"http://127.0.0.1:{port}", folder, _VARIABLES)


@contextmanager
def logs_of_failure(folder: Path) -> Iterator[None]:
    """Print the ends of the logs in a folder, which is about to go, if the block fails."""
    try:
        yield
    except Exception:
        for log in sorted(folder.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text('utf-8', errors='replace')[-_SHOWN:]}", file=sys.stderr)
        raise


@contextmanager
def alone() -> Iterator[None]:
    """Run a cluster; when it has stopped, nothing that it started is left to slow the next one down."""
    try:
        yield
    finally:
        _, left = psutil.wait_procs(psutil.Process().children(recursive=True), _STOP_SECONDS)
        for process in left:
            process.kill()
        psutil.wait_procs(left, _STOP_SECONDS)


def measured_of(played: Mapping[str, PlayedFleet]) -> Measured:
    """Return the means of the real fleets."""
    fleets = list(played.values())
    return Measured(
        step_seconds=sum(fleet.step_seconds for fleet in fleets) / len(fleets),
        load_seconds=sum(fleet.load_seconds for fleet in fleets) / len(fleets),
    )


def row(name: str, figures: FleetFigures) -> dict[str, str]:
    replaced = {kind: ", ".join(map(_seconds, figures.replaced[kind])) for kind in LossKind}
    return {
        "fleet": name,
        "jobs": f"{figures.num_jobs + figures.num_lost}",
        "lost": f"**{figures.num_lost}**",
        "drawn again": f"{figures.num_redrawn}",
        "wait p50": f"{figures.wait_p50:.1f} s",
        "wait p95": f"{figures.wait_p95:.1f} s",
        "all done after": f"{figures.seconds:.0f} s",
        "worker-seconds": f"{figures.worker_seconds:.0f}",
        "replaced after a death": replaced[LossKind.DEATH],
        "after a notice": replaced[LossKind.NOTICE],
    }


def _seconds(replaced: float | None) -> str:
    return "not before the end" if replaced is None else f"{replaced:.1f} s"


def write(
    label: str,
    figures: Mapping[str, FleetFigures],
    courses: Mapping[str, Course],
    measured: Measured,
    text: str,
    load: MachineLoad,
) -> None:
    conditions = read_conditions(("torch",)) | {"ray": RAY, "checkpoint": workloads.checkpoint_name()}
    content = {
        "shape": asdict(FULL),
        "settings": asdict(SETTINGS),
        "measured": asdict(measured),
        "fleets": {name: asdict(each) for name, each in figures.items()},
        "courses": {name: asdict(each) for name, each in courses.items()},
    }
    about = (
        f"{LEAST} to {MOST} workers on one core each, one job of a worker at a time; leases of "
        f"{SETTINGS.lease_seconds:g} s. A wait is what a client waits beside the drawing of its own image. "
        "Worker-seconds are those that the cluster manager counts. "
        f"Simulated workers take {measured.step_seconds:.3f} s a step and {measured.load_seconds:.1f} s "
        "to load, as the real ones did."
    )
    stem = RESULTS / f"fleet-engines_{label}"
    path = write_report(
        stem, content, f"# One trace on several cluster managers\n\n{about}\n\n{text}", conditions, load
    )
    plot = PLOT if path.parent == RESULTS else path.with_suffix(".svg")
    plot.write_text(plotted(courses), encoding="utf-8")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="play a short trace; writes nothing")
    parser.add_argument("--only", choices=("ray", "slurm"), help="play on one of them; writes nothing")
    parser.add_argument("--seed", type=int, default=1, help="of the trace")
    parser.add_argument("--label", default="cpu", help="names the machine in the result's file name")
    return parser.parse_args()


if __name__ == "__main__":
    main()
