"""Throughput and latency of the control plane, with workers that compute nothing.

    python -m benchmarks control                 # all parts on both databases; about five minutes
    python -m benchmarks control --only jobs --num-jobs 1000

Parts: `jobs` from submit to succeeded, through HTTP, with CPU by process; `peer`: procrastinate
doing no-op jobs on the same PostgreSQL; `claims` with 100,000 jobs of 200 tenants in the queue;
`pick-up`: how soon an idle worker has a job; `batches`: 50,000 items in a call, and the
latency of interactive jobs meanwhile. Results go to `benchmarks/results/` as JSON and as tables. Nothing else
should run on the machine.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.control import database as control_database
from benchmarks.control.batches import BatchFigures, measure_batch
from benchmarks.control.claims import NUM_TENANTS, ClaimFigures, measure_claims
from benchmarks.control.database import POSTGRESQL, Database, open_database
from benchmarks.control.jobs import JobFigures, Load, PickUpFigures, measure_jobs, measure_pick_up
from benchmarks.control.peer import NUM_AT_ONCE, PeerFigures, measure_peer
from benchmarks.control.processes import adopt_orphans
from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_report

PARTS = ("jobs", "peer", "claims", "pick-up", "batches")
_PACKAGES = ("sqlalchemy", "asyncpg", "aiosqlite", "fastapi", "uvicorn", "procrastinate", "psycopg")
_NUM_PICK_UPS = 200
_ABOUT = "Everything on one machine, on both databases with every commit on the disk before its answer."


@dataclass
class Figures:
    jobs: list[JobFigures] = field(default_factory=list)
    peer: list[PeerFigures] = field(default_factory=list)
    claims: list[ClaimFigures] = field(default_factory=list)
    pick_ups: list[PickUpFigures] = field(default_factory=list)
    batches: list[BatchFigures] = field(default_factory=list)


def main() -> None:
    adopt_orphans()
    arguments = parse_arguments()
    names = control_database.NAMES if arguments.database == "both" else (arguments.database,)
    figures = Figures()
    for name in names:
        for part in PARTS:
            if arguments.only in (None, part):
                run_part(part, name, arguments, figures)
    text = tables(figures)
    print(text)
    if arguments.only is None and arguments.database == "both":
        text = f"# The control plane with an engine that does nothing\n\n{text}\n\n{_ABOUT}"
        write_report(
            RESULTS / f"control_{arguments.label}", asdict(figures), text, read_conditions(_PACKAGES)
        )


def run_part(part: str, name: str, arguments: argparse.Namespace, figures: Figures) -> None:
    rounds = range(arguments.rounds)
    if part == "jobs":
        load = Load(arguments.num_jobs, arguments.connections)
        for num_agents in (1, 2):
            for _ in rounds:
                with fresh(part, name) as (database, folder):
                    figures.jobs.append(asyncio.run(measure_jobs(database, folder, load, num_agents)))
    elif part == "peer" and name == POSTGRESQL:
        for _ in rounds:
            with fresh(part, name) as (database, folder):
                figures.peer.append(asyncio.run(measure_peer(database, arguments.num_jobs, folder)))
    elif part == "claims":
        with fresh(part, name) as (database, _):
            counts = (arguments.num_queued, arguments.num_claims)
            figures.claims.append(asyncio.run(measure_claims(database, *counts)))
    elif part == "pick-up":
        with fresh(part, name) as (database, folder):
            figures.pick_ups.append(asyncio.run(measure_pick_up(database, folder, _NUM_PICK_UPS)))

    elif part == "batches":
        with fresh(part, name) as (database, folder):
            figures.batches.append(asyncio.run(measure_batch(database, folder, arguments.num_items)))


@contextmanager
def fresh(part: str, name: str) -> Iterator[tuple[Database, Path]]:
    """Run all parts; each measurement has its own database and processes."""
    folder = Path(tempfile.mkdtemp(prefix=f"diffuserve-bench-{name}-"))
    folder.chmod(0o755)  # PostgreSQL runs as a user of its own where we are root
    print(f"{part} on {name}, logs in {folder}", flush=True)
    with open_database(name, folder) as database:
        yield database, folder


def tables(figures: Figures) -> str:
    sections = [
        markdown_table(
            "Jobs, submit to succeeded (target: 200 jobs/s; server 4 ms)",
            [_job_row(row) for row in figures.jobs],
        ),
        markdown_table(
            f"procrastinate beside it: jobs that do nothing, no HTTP, {NUM_AT_ONCE} at a time",
            [_peer_row(row) for row in figures.peer],
        ),
        markdown_table(
            "From submit to an idle worker, HTTP both ways (target: median 30 ms)",
            [_pick_up_row(row) for row in figures.pick_ups],
        ),
        markdown_table(
            f"Claims with jobs of {NUM_TENANTS} tenants in the queue (target: p99 20 ms)",
            [_claim_row(row) for row in figures.claims],
        ),
        markdown_table(
            "A batch taken in, and interactive jobs from submit to lease meanwhile (targets: 60 s, 100 ms)",
            [_batch_row(row) for row in figures.batches],
        ),
    ]
    sections += [_plans_text(claims) for claims in figures.claims]
    return "\n\n".join(section for section in sections if section)


def _job_row(jobs: JobFigures) -> dict[str, str]:
    return {
        "database": jobs.database,
        "agents": f"{jobs.num_agents}",
        "connections": f"{jobs.num_connections}",
        "jobs": f"{jobs.num_jobs}",
        "jobs/s": f"**{jobs.jobs_per_second:.0f}**",
        "p50 s": f"{jobs.median_seconds:.2f}",
        "p99 s": f"{jobs.p99_seconds:.2f}",
        **{f"{part}, CPU ms/job": f"{spent:.2f}" for part, spent in jobs.cpu_ms.items()},
    }


def _peer_row(peer: PeerFigures) -> dict[str, str]:
    return {
        "jobs": f"{peer.num_jobs}",
        "jobs/s": f"**{peer.jobs_per_second:.0f}**",
        "worker, CPU ms/job": f"{peer.worker_cpu_ms:.2f}",
        "deferring, CPU ms/job": f"{peer.load_cpu_ms:.2f}",
        "PostgreSQL, CPU ms/job": f"{peer.postgresql_cpu_ms:.2f}",
    }


def _pick_up_row(pick_up: PickUpFigures) -> dict[str, str]:
    return {
        "database": pick_up.database,
        "jobs": f"{pick_up.num_jobs}",
        "median ms": f"**{pick_up.median_ms:.1f}**",
        "p99 ms": f"{pick_up.p99_ms:.1f}",
    }


def _batch_row(batch: BatchFigures) -> dict[str, str]:
    return {
        "database": batch.database,
        "items": f"{batch.num_items:,}",
        "taken in, s": f"**{batch.seconds:.1f}**",
        "quiet, median ms": f"{batch.quiet_median_ms:.1f}",
        "quiet, p99 ms": f"{batch.quiet_p99_ms:.1f}",
        "meanwhile, median ms": f"{batch.busy_median_ms:.1f}",
        "meanwhile, p99 ms": f"{batch.busy_p99_ms:.1f}",
        "meanwhile, worst ms": f"**{batch.busy_max_ms:.1f}**",
    }


def _claim_row(claims: ClaimFigures) -> dict[str, str]:
    return {
        "database": claims.database,
        "queued": f"{claims.num_queued:,}",
        "p50 ms": f"{claims.p50_ms:.1f}",
        "p99 ms": f"**{claims.p99_ms:.1f}**",
        f"p50 ms, {claims.num_at_once} jobs": f"{claims.batch_p50_ms:.1f}",
        f"p99 ms, {claims.num_at_once} jobs": f"{claims.batch_p99_ms:.1f}",
        "submits/s while filling": f"{claims.submits_per_second:,.0f}",
    }


def _plans_text(claims: ClaimFigures) -> str:
    return (
        f"What one claim asks {claims.database}, and how that goes about it:\n\n```\n"
        + "\n".join(claims.plans)
        + "\n```"
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", choices=[*control_database.NAMES, "both"], default="both")
    parser.add_argument("--only", choices=PARTS, help="one part; writes no result file")
    parser.add_argument("--num-jobs", type=int, default=3_000, help="a round (default 3000)")
    parser.add_argument("--rounds", type=int, default=2, help="of `jobs` and `peer` (default 2)")
    parser.add_argument("--connections", type=int, default=32, help="of the load generator (default 32)")
    parser.add_argument("--num-queued", type=int, default=100_000, help="for `claims` (default 100000)")
    parser.add_argument("--num-claims", type=int, default=1_000, help="for `claims` (default 1000)")
    parser.add_argument("--num-items", type=int, default=50_000, help="for `batches` (default 50000)")
    parser.add_argument("--label", default="cpu", help="names the machine in the result's file name")
    return parser.parse_args()


if __name__ == "__main__":
    main()
