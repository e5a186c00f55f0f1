"""A fleet of simulated workers on one machine: 1 to 200 of them, on one and on two control planes.

    python -m benchmarks fleet                       # make bench NAME=fleet
    python -m benchmarks fleet --quick

A worker holds a job for a while and does nothing, so that a machine of two cores carries 200 of them: what
works here are the control planes and PostgreSQL, over HTTP, with every commit on the disk before its answer.
The queue never runs empty. `busy` is the part of the workers' time in which they had a job: the rest they
waited for the next one. Two control planes talk over Valkey. Nothing else should run on the machine.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import sqlalchemy as sa
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.control.database import POSTGRESQL, Database, open_database
from benchmarks.control.jobs import REGISTRATION, ControlPlane, bodies_of
from benchmarks.control.load import Connection, submit_jobs
from benchmarks.control.processes import adopt_orphans, cpu_seconds
from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_report
from diffuserve.jobs.database import schema
from support.valkey import ValkeyServer

_FLEETS = ((1, 2.0), (10, 2.0), (50, 2.0), (100, 2.0), (200, 2.0), (200, 0.5))
"""Workers, and the seconds that a job takes; the last fleet asks for more than there is."""
_PER_PROCESS = 50
_START_SECONDS = 12.0  # from the first worker to the last, for which the queue must last as well
_SETTLE_SECONDS = 4.0  # until every worker has a job
_WINDOW_SECONDS = 20.0
_CONNECTIONS = 16
_PACKAGES = ("sqlalchemy", "asyncpg", "fastapi", "uvicorn")
_REQUESTS = "diffusion_http_request_duration_seconds_count"
_KINDS = {"claims": "/claim", "completions": "/complete", "heartbeats": "/heartbeat", "events": "/progress"}


@dataclass(frozen=True, kw_only=True)
class FleetFigures:
    """Work of a fleet in a second, the part of its time in which it had jobs, and CPU for each job."""

    num_control_planes: int
    num_workers: int
    job_seconds: float
    jobs_per_second: float
    busy: float
    per_second: Mapping[str, float]
    cpu_ms: Mapping[str, float]


def main() -> None:
    adopt_orphans()
    arguments = parse_arguments()
    fleets = ((2, 1.0),) if arguments.quick else _FLEETS
    window = 4.0 if arguments.quick else _WINDOW_SECONDS
    figures = []
    for num_planes in (1, 2):
        with fleet_database(num_planes) as (database, settings, folder):
            figures += asyncio.run(measure_fleets(database, settings, folder, num_planes, fleets, window))
    text = report(figures)
    print(text)
    if not arguments.quick:
        content = {"fleets": [asdict(fleet) for fleet in figures]}
        write_report(RESULTS / f"fleet_{arguments.label}", content, text, read_conditions(_PACKAGES))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="4 workers for 4 seconds, and no result")
    parser.add_argument("--label", default="cpu", help="names the machine in the result's file name")
    return parser.parse_args()


@contextmanager
def fleet_database(num_planes: int) -> Iterator[tuple[Database, dict[str, str], Path]]:
    """Yield PostgreSQL, and the settings that several control planes need to talk to each other."""
    folder = Path(tempfile.mkdtemp(prefix="diffuserve-fleet-"))
    folder.chmod(0o755)  # PostgreSQL does not run as root
    with ExitStack() as stack:
        database = stack.enter_context(open_database(POSTGRESQL, folder))
        settings = {}
        if num_planes > 1:
            valkey = stack.enter_context(ValkeyServer())
            settings["DIFFUSERVE_VALKEY_URL"] = f"redis://127.0.0.1:{valkey.port}"
        yield database, settings, folder


async def measure_fleets(
    database: Database,
    settings: Mapping[str, str],
    folder: Path,
    num_planes: int,
    fleets: Sequence[tuple[int, float]],
    window: float,
) -> list[FleetFigures]:
    planes = []
    for number in range(num_planes):
        own = folder / f"plane-{number}"
        own.mkdir()
        planes.append(ControlPlane(database, own, num_agents=0, settings=settings))
    figures = []
    async with AsyncExitStack() as stack:
        for plane in planes:
            await stack.enter_async_context(plane)
        async with Connection(planes[0].port) as connection:
            await connection.post(
                "/v1/workers", REGISTRATION
            )  # jobs are accepted for models that were offered
        for num_workers, job_seconds in fleets:
            found = await measure_fleet(planes, num_workers, job_seconds, window)
            print(f"{num_planes} control planes, {num_workers} workers: {found.jobs_per_second:.1f} jobs/s")
            figures.append(found)
    return figures


async def measure_fleet(
    planes: Sequence[ControlPlane], num_workers: int, job_seconds: float, window: float
) -> FleetFigures:
    """Run workers over a full queue, and look at what happens within the window."""
    most = int(num_workers * (_START_SECONDS + _SETTLE_SECONDS + window) / job_seconds) + 10
    await submit_jobs(planes[0].port, bodies_of(most), _CONNECTIONS)
    ports = [plane.port for plane in planes]
    with simulated_workers(ports, num_workers, job_seconds) as processes:
        await asyncio.sleep(_SETTLE_SECONDS)
        before, used, started = await counts_of(planes), cpu_of(planes), time.perf_counter()
        await asyncio.sleep(window)
        seconds = time.perf_counter() - started
        after, used_then = await counts_of(planes), cpu_of(planes)
        for process in processes:
            if process.poll() is not None:
                raise RuntimeError("a process of workers has ended")
        await check_queue(planes[0].database)
    per_second = {kind: (after[kind] - before[kind]) / seconds for kind in before}
    jobs = per_second["completions"]
    return FleetFigures(
        num_control_planes=len(planes),
        num_workers=num_workers,
        job_seconds=job_seconds,
        jobs_per_second=jobs,
        busy=jobs * job_seconds / num_workers,
        per_second=per_second,
        cpu_ms={part: 1_000.0 * (used_then[part] - used[part]) / (jobs * seconds) for part in used},
    )


@contextmanager
def simulated_workers(
    ports: Sequence[int], count: int, job_seconds: float
) -> Iterator[list["subprocess.Popen[str]"]]:
    """Run workers in processes of at most fifty; yield once all are registered."""
    command = [sys.executable, "-m", "benchmarks.control.fleet_workers", "--ports", ",".join(map(str, ports))]
    processes = []
    for first in range(0, count, _PER_PROCESS):
        number = min(_PER_PROCESS, count - first)
        options = ["--workers", str(number), "--first", str(first), "--seconds", str(job_seconds)]
        processes.append(subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True))
    try:
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "registered":
                raise RuntimeError("a process of workers has ended")
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


async def counts_of(planes: Sequence[ControlPlane]) -> dict[str, float]:
    """Return the requests so far by kind, as the control planes' metrics count them."""
    counts = dict.fromkeys(_KINDS, 0.0)
    for plane in planes:
        async with Connection(plane.port) as connection:
            text = (await connection.send(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")).body.decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == _REQUESTS:
                    for kind, ending in _KINDS.items():
                        if sample.labels["route"].endswith(ending):
                            counts[kind] += sample.value
    return counts


def cpu_of(planes: Sequence[ControlPlane]) -> dict[str, float]:
    """Return the CPU seconds so far of the control planes and of PostgreSQL."""
    postmaster = planes[0].database.postmaster
    assert postmaster is not None
    return {
        "control planes": sum(cpu_seconds(plane.server.pid) for plane in planes),
        "PostgreSQL": cpu_seconds(postmaster(), with_children=True),
    }


async def check_queue(database: Database) -> None:
    """Raise an error if the queue ran empty: then workers waited for jobs."""
    engine = create_async_engine(database.store_url, hide_parameters=True)
    async with engine.connect() as connection:
        is_full = (await connection.execute(sa.select(sa.exists(schema.ready.select())))).scalar_one()
    await engine.dispose()
    if not is_full:
        raise RuntimeError("the queue ran empty; submit more jobs")


def report(figures: Sequence[FleetFigures]) -> str:
    rows = [_row_of(fleet) for fleet in figures]
    about = "An `events` request has the progress of all jobs of a worker."
    return markdown_table("A fleet of simulated workers", rows) + f"\n\n{about}"


def _row_of(fleet: FleetFigures) -> dict[str, str]:
    rates = {kind: rate for kind, rate in fleet.per_second.items() if kind != "completions"}
    return {
        "control planes": str(fleet.num_control_planes),
        "workers": str(fleet.num_workers),
        "a job's seconds": f"{fleet.job_seconds:g}",
        "jobs/s": f"**{fleet.jobs_per_second:.1f}**",
        "busy": f"{fleet.busy:.2f}",
        **{f"{kind}/s": f"{rate:.1f}" for kind, rate in rates.items()},
        **{f"{part}, CPU ms/job": f"{cpu:.1f}" for part, cpu in fleet.cpu_ms.items()},
    }


if __name__ == "__main__":
    main()
