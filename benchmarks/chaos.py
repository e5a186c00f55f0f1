"""Jobs while processes are killed: nothing that was accepted may be lost or published twice.

    python benchmarks/chaos.py                           # SQLite, then PostgreSQL; a few minutes each
    python benchmarks/chaos.py --database sqlite --jobs 50 --kills 8 --seconds 15

Real processes: control plane, agents and engines are killed with `kill -9` every one to three
seconds and started again; a worker is frozen past its lease and woken; PostgreSQL's postmaster is
killed and started again. Clients submit all the while, under idempotency keys, and wait for each
job. At the end the database and the folder of results are read. Results go to
`benchmarks/results/` as JSON and as a table; the exit code is 1 if anything was lost or doubled.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import control_database
from bench_report import RESULTS
from chaos_audit import Records, audit
from chaos_cluster import JOB_SECONDS, MAX_JOBS, Cluster
from chaos_mischief import Mischief, Plan
from chaos_report import Outcome, table, write_results
from control_database import Database, open_database
from diffuserve.client.jobs import Client
from diffuserve.domain.job import JobStatus
from diffuserve.domain.params import GenerationParams

_NUM_AGENTS = 3
_OUTSTANDING = 24  # jobs that clients have under way at a time
_DRAIN_SECONDS = 120.0
_PATIENCE_SECONDS = 120.0


def main() -> None:
    arguments = parse_arguments()
    names = control_database.NAMES if arguments.database == "both" else (arguments.database,)
    outcomes = []
    for name in names:
        outcomes.append(run_on(name, arguments))
        print(f"{table(outcomes[-1:])}\n", flush=True)
    if len(outcomes) > 1:
        print(table(outcomes))
    write_results(outcomes, arguments.output)
    failures = [f"{one.database}: {reason}" for one in outcomes for reason in one.shortfalls]
    sys.exit("\n".join(failures) or 0)


def run_on(name: str, arguments: argparse.Namespace) -> Outcome:
    plan = Plan(
        num_kills=arguments.kills,
        seconds=arguments.seconds,
        num_freezes=arguments.freezes,
        num_database_restarts=arguments.database_restarts,
        lease_seconds=arguments.lease_seconds,
        seed=arguments.seed,
    )
    folder = Path(tempfile.mkdtemp(prefix=f"diffuserve-chaos-{name}-", dir=arguments.folder))
    folder.chmod(0o755)  # PostgreSQL runs as a user of its own where we are root
    print(f"{name}: logs in {folder}", flush=True)
    with open_database(name, folder) as database:
        return asyncio.run(run_chaos(database, folder, plan, arguments.jobs))


class Clients:
    """Submit a job, wait for its end, submit the next; `told` is what they were answered."""

    def __init__(self, servers: list[str], num_jobs: int) -> None:
        self.told: dict[str, JobStatus | None] = {}
        self._servers, self._num_jobs = servers, num_jobs
        self._number = 0

    async def run(self, until: asyncio.Task[None]) -> None:
        """For as long as the mischief lasts, and for the number of jobs at least."""
        async with asyncio.TaskGroup() as group:
            for number in range(_OUTSTANDING):
                group.create_task(self._work(self._servers[number % len(self._servers)], until))

    async def _work(self, server: str, until: asyncio.Task[None]) -> None:
        async with Client(server, patience_seconds=_PATIENCE_SECONDS) as client:
            while not until.done() or self._number < self._num_jobs:
                self._number += 1
                job = await client.submit(GenerationParams(prompt=f"job {self._number}"), model="null")
                self.told[job.id] = None
                with suppress(TimeoutError):  # the audit says what became of it
                    self.told[job.id] = (await client.wait(job.id, timeout=_DRAIN_SECONDS)).status


async def run_chaos(database: Database, folder: Path, plan: Plan, num_jobs: int) -> Outcome:
    started = time.monotonic()
    records = Records(database.store_url)
    cluster = Cluster(folder, database.url, plan.lease_seconds, _NUM_AGENTS)
    try:
        await cluster.start()
        mischief = Mischief(cluster, records, plan, database.restart)
        clients = Clients([server.url for server in cluster.servers], num_jobs)
        wreck = asyncio.create_task(mischief.run())
        await asyncio.gather(clients.run(until=wreck), wreck)
        await until_finished(records)
        await cluster.read_fenced()
    finally:
        await cluster.stop()
    verdict = await audit(records, folder / "data" / "artifacts", clients.told, mischief.toll.hurt)
    await records.close()
    return Outcome(
        database=database.name,
        plan=plan,
        toll=mischief.toll,
        verdict=verdict,
        fenced_writes=cluster.fenced_writes,
        seconds=time.monotonic() - started,
        setup={
            "agents": _NUM_AGENTS,
            "control planes": len(cluster.servers),
            "jobs at a time and agent": MAX_JOBS,
            "job seconds": JOB_SECONDS,
        },
    )


async def until_finished(records: Records) -> None:
    """Every job final, or given up: the audit then says which are not."""
    deadline = time.monotonic() + _DRAIN_SECONDS
    while await records.num_unfinished() and time.monotonic() < deadline:
        await asyncio.sleep(0.2)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", choices=[*control_database.NAMES, "both"], default="both")
    parser.add_argument("--jobs", type=int, default=300, help="at least so many (default 300)")
    parser.add_argument("--kills", type=int, default=36, help="at least so many (default 36)")
    parser.add_argument("--seconds", type=float, default=75.0, help="for at least so long (default 75)")
    parser.add_argument("--freezes", type=int, default=3, help="workers frozen past their lease (default 3)")
    parser.add_argument("--database-restarts", type=int, default=2, help="of PostgreSQL (default 2)")
    parser.add_argument("--lease-seconds", type=float, default=3.0, help="heartbeats: a third of it")
    parser.add_argument("--seed", type=int, default=1, help="of what is hurt, and when (default 1)")
    parser.add_argument("--folder", type=Path, help="where logs and data go; by default a temporary folder")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the result files go")
    return parser.parse_args()


if __name__ == "__main__":
    main()
