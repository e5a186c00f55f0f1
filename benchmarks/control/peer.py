"""Empty jobs of procrastinate on the same PostgreSQL: a queue without HTTP.

This process defers the jobs singly, as ours are submitted; a worker in another process
(`python -m benchmarks.control.peer URL`) runs them.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import procrastinate
import psycopg

from benchmarks.control.database import Database
from benchmarks.control.processes import Program, cpu_seconds

NUM_AT_ONCE = 32
_QUEUE = "nothing"
_DEADLINE_SECONDS = 300.0

Defer = Callable[[str], Awaitable[int]]


@dataclass(frozen=True, kw_only=True)
class PeerFigures:
    """Throughput from the first deferred job to the last finished one, and CPU milliseconds per job."""

    num_jobs: int
    jobs_per_second: float
    worker_cpu_ms: float
    load_cpu_ms: float
    postgresql_cpu_ms: float


def make_app(url: str) -> procrastinate.App:
    return procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, max_size=16))


def add_task(app: procrastinate.App) -> Defer:
    @app.task(queue=_QUEUE, name="do_nothing")
    async def do_nothing(prompt: str) -> None:
        return None

    return lambda prompt: do_nothing.defer_async(prompt=prompt)


async def measure_peer(database: Database, num_jobs: int, folder: Path) -> PeerFigures:
    assert database.url is not None
    assert database.postmaster is not None
    url, postmaster = database.url, database.postmaster()
    app = make_app(url)
    defer = add_task(app)
    worker = Program(
        "procrastinate",
        [sys.executable, "-m", "benchmarks.control.peer", url],
        {},
        folder / "procrastinate.log",
    )
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        worker.start()
        try:
            await _defer_all(defer, 1)
            await _until_done(url, 1)  # the worker is up
            before = _cpu(worker.pid, postmaster)
            started = time.perf_counter()
            done = asyncio.create_task(_until_done(url, 1 + num_jobs))
            await _defer_all(defer, num_jobs)
            await done
            seconds = time.perf_counter() - started
            used = [
                1_000 * (b - a) / num_jobs for a, b in zip(before, _cpu(worker.pid, postmaster), strict=True)
            ]
        finally:
            worker.stop()
    return PeerFigures(
        num_jobs=num_jobs,
        jobs_per_second=num_jobs / seconds,
        worker_cpu_ms=used[0],
        load_cpu_ms=used[1],
        postgresql_cpu_ms=used[2],
    )


async def _defer_all(defer: Defer, count: int) -> None:
    numbers = iter(range(count))

    async def defer_rest(rest: Iterable[int]) -> None:
        for number in rest:
            await defer(f"job {number}")

    async with asyncio.TaskGroup() as group:
        for _ in range(NUM_AT_ONCE):
            group.create_task(defer_rest(numbers))


async def _until_done(url: str, count: int) -> None:
    """Poll ten times a second, by an index."""
    connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
    async with connection, asyncio.timeout(_DEADLINE_SECONDS):
        while True:
            found = await connection.execute(
                "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'"
            )
            row = await found.fetchone()
            if row is not None and row[0] >= count:
                return
            await asyncio.sleep(0.1)


def _cpu(worker: int, postmaster: int) -> tuple[float, float, float]:
    return cpu_seconds(worker), time.process_time(), cpu_seconds(postmaster, with_children=True)


async def work(url: str) -> None:
    app = make_app(url)
    add_task(app)
    async with app.open_async():
        await app.run_worker_async(queues=[_QUEUE], concurrency=NUM_AT_ONCE, install_signal_handlers=True)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
