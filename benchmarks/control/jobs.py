"""Jobs from submission to success, over HTTP, with real processes and a null engine."""

import asyncio
import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from benchmarks.control.claims import percentile
from benchmarks.control.database import Database
from benchmarks.control.load import Connection, submit_jobs
from benchmarks.control.processes import (
    Program,
    api_command,
    cpu_seconds,
    free_port,
    null_agent_command,
    serving_environment,
)
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.jobs.database import schema

_WARM_UP = 200
_MAX_JOBS = 64  # that an agent holds at a time
_START_SECONDS = 60.0
_DEADLINE_SECONDS = 300.0


@dataclass(frozen=True)
class Load:
    """A number of jobs, submitted over a number of connections."""

    num_jobs: int
    num_connections: int


@dataclass(frozen=True, kw_only=True)
class JobFigures:
    """Throughput from the first submission to the last success, and CPU milliseconds per job by process."""

    database: str
    num_jobs: int
    num_agents: int
    num_connections: int
    jobs_per_second: float
    submits_per_second: float
    median_seconds: float
    p99_seconds: float
    cpu_ms: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class PickUpFigures:
    """Milliseconds from a submission's first byte to the lease at an idle worker, both over HTTP."""

    database: str
    num_jobs: int
    median_ms: float
    p99_ms: float


class ControlPlane:
    """A server and its agents with null engines, as processes; `folder` has their logs."""

    def __init__(
        self, database: Database, folder: Path, num_agents: int, settings: Mapping[str, str] | None = None
    ) -> None:
        self.port = free_port()
        self.database = database
        url = f"http://127.0.0.1:{self.port}"
        environment = serving_environment() | dict(settings or {})
        command = api_command(self.port, folder / "data", database.url)
        self.server = Program("server", command, environment, folder / "server.log")
        self.agents = [
            Program(
                name,
                null_agent_command(url, name, _MAX_JOBS, seconds=0, files=0),
                environment,
                folder / f"{name}.log",
            )
            for name in (f"agent-{number + 1}" for number in range(num_agents))
        ]

    async def __aenter__(self) -> "ControlPlane":
        try:
            await self._start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for program in (*self.agents, self.server):
            await asyncio.to_thread(program.stop)

    def cpu(self) -> dict[str, float]:
        """Return the CPU seconds so far by part; the load generator is this process."""
        engines = [child.pid for agent in self.agents for child in agent.children()]
        used = {
            "server": cpu_seconds(self.server.pid),
            "agents": sum(cpu_seconds(agent.pid) for agent in self.agents),
            "engines": sum(cpu_seconds(engine) for engine in engines),
            "load generator": time.process_time(),
        }
        if self.database.postmaster is not None:
            used["PostgreSQL"] = cpu_seconds(self.database.postmaster(), with_children=True)
        return used

    def check(self) -> None:
        """Raise an error if a process has ended."""
        for program in (self.server, *self.agents):
            if program.was_started and not program.is_alive:
                raise RuntimeError(f"{program.name} ended; see its log")

    async def _start(self) -> None:
        self.server.start()
        await self._until("/healthz")
        for agent in self.agents:
            agent.start()
        if self.agents:
            await self._until("/readyz")

    async def _until(self, path: str) -> None:
        request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
        async with asyncio.timeout(_START_SECONDS):
            while True:
                try:
                    async with Connection(self.port) as connection:
                        if (await connection.send(request)).status == 200:
                            return
                except OSError:
                    pass  # not listening yet
                self.check()
                await asyncio.sleep(0.05)


async def measure_jobs(
    database: Database,
    folder: Path,
    load: Load,
    num_agents: int,
    settings: Mapping[str, str] | None = None,
) -> JobFigures:
    num_jobs, num_connections = load.num_jobs, load.num_connections
    engine = create_async_engine(database.store_url, hide_parameters=True)
    async with ControlPlane(database, folder, num_agents, settings) as plane:
        await submit_jobs(plane.port, bodies_of(_WARM_UP), num_connections)  # caches are warm
        await _until_all_done(engine, plane)
        before, started = plane.cpu(), time.perf_counter()
        await submit_jobs(plane.port, bodies_of(num_jobs), num_connections)
        submitted_in = time.perf_counter() - started
        await _until_all_done(engine, plane)
        after = plane.cpu()
        latencies, seconds = await _times(engine, num_jobs)
    await engine.dispose()
    return JobFigures(
        database=database.name,
        num_jobs=num_jobs,
        num_agents=num_agents,
        num_connections=num_connections,
        jobs_per_second=num_jobs / seconds,
        submits_per_second=num_jobs / submitted_in,
        median_seconds=statistics.median(latencies),
        p99_seconds=percentile(latencies, 99),
        cpu_ms={part: 1_000 * (after[part] - before[part]) / num_jobs for part in before},
    )


async def measure_pick_up(database: Database, folder: Path, num_jobs: int) -> PickUpFigures:
    """Measure with this process as worker too, which waits in a long poll as an idle agent does."""
    milliseconds = []
    async with (
        ControlPlane(database, folder, num_agents=0) as plane,
        Connection(plane.port) as client,
        Connection(plane.port) as worker,
    ):
        registered = await worker.post("/v1/workers", REGISTRATION)
        worker_path = f"/v1/workers/{registered.json()['worker_id']}"
        for number in range(num_jobs):
            claim = {"claim_id": f"claim-{number}", "num_jobs": 1}
            waiting = asyncio.create_task(worker.post(f"{worker_path}/claim?wait=20", claim))
            await asyncio.sleep(0.01)  # the long-poll is in place
            started = time.perf_counter()
            submitted = asyncio.create_task(client.post("/v1/jobs", _JOB))
            (lease,) = (await waiting).json()["leases"]
            milliseconds.append(1_000 * (time.perf_counter() - started))
            await submitted
            done = {"lease_token": lease["lease_token"], "result": {}, "actual_seconds": 0.01}
            completed = await worker.post(f"/v1/leases/{lease['job_id']}/complete", done)
            assert completed.status == 200, completed.body
    return PickUpFigures(
        database=database.name,
        num_jobs=num_jobs,
        median_ms=statistics.median(milliseconds),
        p99_ms=percentile(milliseconds, 99),
    )


def bodies_of(count: int) -> list[bytes]:
    return [
        json.dumps({**_JOB, "input": {"prompt": f"a red circle, number {n}"}}).encode() for n in range(count)
    ]


async def _until_all_done(engine: AsyncEngine, plane: ControlPlane) -> None:
    """Wait until the two small tables of queued and running jobs are empty."""
    queued = sa.exists(sa.select(schema.ready.c.job_id))
    running = sa.exists(sa.select(schema.leases.c.job_id))
    async with asyncio.timeout(_DEADLINE_SECONDS):
        while True:
            async with engine.connect() as connection:
                if not (await connection.execute(sa.select(queued | running))).scalar_one():
                    return
            plane.check()
            await asyncio.sleep(0.05)


async def _times(engine: AsyncEngine, num_jobs: int) -> tuple[list[float], float]:
    """Return the seconds from submission to success, of each of the last `num_jobs` and of all together."""
    jobs = schema.jobs
    newest = sa.select(jobs.c.status, jobs.c.created_at, jobs.c.finished_at).order_by(
        jobs.c.created_at.desc()
    )
    times = sa.select(jobs.c.status, jobs.c.created_at, jobs.c.finished_at)
    newest = times.order_by(jobs.c.created_at.desc()).limit(num_jobs)
    async with engine.connect() as connection:
        rows = (await connection.execute(newest)).all()
    assert all(row.status == JobStatus.SUCCEEDED for row in rows)
    latencies = [row.finished_at - row.created_at for row in rows]
    return latencies, max(row.finished_at for row in rows) - min(row.created_at for row in rows)


_JOB = {"kind": "image.generate", "model": "null", "input": {"prompt": "a red circle"}}
REGISTRATION = {
    "models": [
        {
            "spec": {
                "name": "null",
                "family": "null",
                "width": 1024,
                "height": 1024,
                "num_inference_steps": 4,
                "max_sequence_length": 256,
                "longest_sequence_length": 512,
            }
        }
    ],
    "report": {"state": "ready"},
}
