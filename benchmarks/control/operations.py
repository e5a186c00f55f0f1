"""CPU time of the operators' view: a snapshot and its changes, over a store of a busy service.

    python -m benchmarks operations                     # both databases
    python -m benchmarks operations --quick             # SQLite, a tenth of the queue; writes nothing
    python -m benchmarks operations --label my-machine

The store has 200 workers with four jobs each, 100,000 ready jobs of 200 tenants, fifteen minutes of counts,
and jobs and webhooks that failed. `snapshot` is all that one view costs: reading the store, building the
resource and writing it as JSON. Between two snapshots a fifth of the workers sends a heartbeat and their jobs
take steps; `delta` is what comes on top, once for all watchers: comparing the two and writing the change.
CPU seconds are those of all threads of this process; those of the sessions of PostgreSQL stand beside them.
"""

import argparse
import asyncio
import gc
import gzip
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
import psutil

from benchmarks.control.database import NAMES, SQLITE, open_database
from benchmarks.control.operations_load import Size, fill, move
from benchmarks.control.processes import adopt_orphans
from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_report
from diffuserve.api.operators.snapshot import snapshot_of
from diffuserve.api.operators.snapshots import Snapshot
from diffuserve.domain.deltas import delta
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.store import JobStore

_PACKAGES = ("sqlalchemy", "asyncpg", "orjson")
_TITLE = "# The operators' view"
_ABOUT = (
    "CPU milliseconds, median over the rounds: `snapshot` reads the store and writes all as JSON, `delta` is "
    "what its change costs beside, once for all watchers. `database` is CPU of PostgreSQL's sessions for a "
    "snapshot. Sizes are bytes as JSON, and compressed by gzip."
)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Medians of one database."""

    database: str
    num_queued: int
    snapshot_ms: float
    database_ms: float
    delta_ms: float
    snapshot_bytes: int
    snapshot_gzip_bytes: int
    delta_bytes: int
    delta_gzip_bytes: int
    idle_delta_bytes: int


def main() -> None:
    adopt_orphans()
    arguments = parse_arguments()
    size = Size(num_queued=10_000) if arguments.quick else Size()
    names = (SQLITE,) if arguments.quick else NAMES
    found = [measured(name, size, arguments.rounds) for name in names]
    table = markdown_table("Costs", [shown(figures) for figures in found])
    print(table)
    if not arguments.quick:
        stem = RESULTS / f"operations_{arguments.label}"
        content = {"size": asdict(size), "figures": [asdict(figures) for figures in found]}
        write_report(stem, content, f"{_TITLE}\n\n{_ABOUT}\n\n{table}", read_conditions(_PACKAGES))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small store on SQLite; writes no result")
    parser.add_argument("--rounds", type=int, default=15, help="snapshots of each database")
    parser.add_argument("--label", default="cpu", help="names the result files")
    return parser.parse_args()


def measured(database: str, size: Size, num_rounds: int) -> Figures:
    with tempfile.TemporaryDirectory() as folder, open_database(database, Path(folder)) as opened:
        postmaster = None if opened.postmaster is None else opened.postmaster()
        url = opened.store_url.replace("+aiosqlite", "").replace("+asyncpg", "")
        return asyncio.run(_measure(database, url, size, num_rounds, postmaster))


async def _measure(name: str, url: str, size: Size, num_rounds: int, postmaster: int | None) -> Figures:
    store = JobStore(url, MemoryEventBus(), StoreConfig())
    await store.open()
    try:
        await fill(store, size)
        rounds = [await _round(store, size, number, postmaster) for number in range(num_rounds)]
        idle = delta((await _snapshot(store, 1)).content, (await _snapshot(store, 2)).content)
    finally:
        await store.close()
    medians = {key: statistics.median(values[key] for values in rounds) for key in rounds[0]}
    sizes = {key: int(value) for key, value in medians.items() if key.endswith("_bytes")}
    times = {key: round(value, 2) for key, value in medians.items() if key.endswith("_ms")}
    return Figures(
        database=name,
        num_queued=size.num_queued,
        idle_delta_bytes=len(orjson.dumps(idle)),
        **times,  # type: ignore[arg-type]
        **sizes,
    )


async def _round(store: JobStore, size: Size, number: int, postmaster: int | None) -> dict[str, float]:
    """Take a snapshot before and after a movement; measure the second one, and the change."""
    before = await _snapshot(store, number)
    _ = before.content
    await move(store, size.num_workers // 5, number % 28)
    gc.collect()
    at, of_database = time.process_time(), _cpu_of_sessions(postmaster)
    after = await _snapshot(store, number + 1)
    whole = after.encoded
    snapshot_seconds = time.process_time() - at
    database_seconds = _cpu_of_sessions(postmaster) - of_database
    at = time.process_time()
    change = orjson.dumps(delta(before.content, after.content))
    delta_seconds = time.process_time() - at
    return {
        "snapshot_ms": 1e3 * snapshot_seconds,
        "database_ms": 1e3 * database_seconds,
        "delta_ms": 1e3 * delta_seconds,
        "snapshot_bytes": len(whole),
        "snapshot_gzip_bytes": len(gzip.compress(whole)),
        "delta_bytes": len(change),
        "delta_gzip_bytes": len(gzip.compress(change)),
    }


async def _snapshot(store: JobStore, revision: int) -> Snapshot:
    return Snapshot(snapshot_of(await store.overview.read(), revision, lambda _job_id: None))


def _cpu_of_sessions(postmaster: int | None) -> float:
    """Return the CPU seconds of all processes of a PostgreSQL server; 0 without one."""
    if postmaster is None:
        return 0.0
    server = psutil.Process(postmaster)
    return sum(sum(process.cpu_times()[:2]) for process in (server, *server.children()))


def shown(figures: Figures) -> dict[str, str]:
    return {
        name.replace("_", " "): f"{value:,}" if isinstance(value, int | float) else str(value)
        for name, value in asdict(figures).items()
    }


if __name__ == "__main__":
    main()
