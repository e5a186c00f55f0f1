"""Jobs while processes are killed: nothing that was accepted may be lost or published twice.

    python -m benchmarks chaos                           # SQLite, then PostgreSQL; a few minutes each
    python -m benchmarks chaos --database sqlite --jobs 50 --kills 8 --seconds 15
    python -m benchmarks chaos --long --hours 3          # 10,000 jobs, 600 faults and a bad network

Real processes: control planes, agents and engines are killed with `kill -9` every one to three
seconds and started again; workers and control planes are suspended and continued. On PostgreSQL there are two
control planes behind a load balancer, sharing a Valkey and a bucket: now and then both are killed at once,
one is frozen in the middle of a transaction, Valkey and PostgreSQL's postmaster are killed and started again,
at once or long after every lease, and the bucket is away, also from the middle of an upload on. Workers are
killed that fetch their model, that only decode, and that have several models. Disks are full for a while, and
the database's clock is set back and ahead. Clients of three tenants submit all the while, under idempotency
keys, and wait for each job or follow its events; each job names a webhook, and is asked for by the other
tenants as well. At the end the database, the files of results and the received webhooks are compared. Results
go to `benchmarks/results/` as JSON and as a table, and the table to `docs/reliability.md`; the exit code is 1
if anything was lost, doubled, crossed, or drawn again for an outage.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from benchmarks.chaos.audit import Records, audit, explained_by
from benchmarks.chaos.balancer import BadNetwork
from benchmarks.chaos.bucket import BucketStore, FolderStore, ResultStore
from benchmarks.chaos.clients import Clients
from benchmarks.chaos.cluster import JOB_SECONDS, MAX_JOBS, Cluster
from benchmarks.chaos.faults import FaultInjector
from benchmarks.chaos.late import write_late
from benchmarks.chaos.plan import Plan
from benchmarks.chaos.progress import print_progress
from benchmarks.chaos.report import Outcome, table, write_results
from benchmarks.chaos.tenants import NUM_TENANTS, Keys, issue_keys
from benchmarks.chaos.webhooks import audit_webhooks, listening, until_sent
from benchmarks.control import database as control_database
from benchmarks.control.database import POSTGRESQL, Database, open_database
from benchmarks.shared.places import RESULTS
from support.valkey import ValkeyServer
from support.webhook_receiver import receiving

_LONG = {
    "jobs": 5_200,
    "kills": 240,
    "kill_pause": 6.0,
    "seconds": 600.0,
    "freezes": 12,
    "server_freezes": 8,
    "transaction_freezes": 15,
    "blackouts": 6,
    "valkey_kills": 8,
    "database_restarts": 6,
    "full_disks": 10,
    "clock_steps": 10,
    "bucket_outages": 4,
    "cut_uploads": 4,
    "bucket_away_seconds": 60.0,
    "database_outages": 2,
    "database_away_seconds": 120.0,
    "download_kills": 6,
    "decode_kills": 10,
    "decode_freezes": 6,
    "several_kills": 10,
}
_LONG_JOBS, _LONG_FAULTS = 10_000, 600
_DRAIN_SECONDS = 300.0


def main() -> None:
    arguments = parse_arguments()
    names = control_database.NAMES if arguments.database == "both" else (arguments.database,)
    outcomes = []
    for name in names:
        outcomes.append(run_on(name, arguments))
        print(f"{table(outcomes[-1:])}\n", flush=True)
    if len(outcomes) > 1:
        print(table(outcomes))
    write_results(outcomes, arguments.output, "chaos-long" if arguments.long else "chaos")
    failures = [f"{outcome.database}: {reason}" for outcome in outcomes for reason in outcome.shortfalls]
    if arguments.long:
        failures += shortfalls_of_all(outcomes)
    sys.exit("\n".join(failures) or 0)


def shortfalls_of_all(outcomes: Sequence[Outcome]) -> list[str]:
    """Return what a long run promises of all databases together, and did not do."""
    num_jobs = sum(outcome.verdict.accepted for outcome in outcomes)
    num_faults = sum(outcome.toll.num_faults for outcome in outcomes)
    few_jobs = [f"{num_jobs:,} jobs are fewer than {_LONG_JOBS:,}"] if num_jobs < _LONG_JOBS else []
    few_faults = [f"{num_faults} faults are fewer than {_LONG_FAULTS}"] if num_faults < _LONG_FAULTS else []
    return few_jobs + few_faults


def run_on(name: str, arguments: argparse.Namespace) -> Outcome:
    folder = Path(tempfile.mkdtemp(prefix=f"diffuserve-chaos-{name}-", dir=arguments.folder))
    folder.chmod(0o755)  # PostgreSQL runs as a user of its own where we are root
    print(f"{name}: logs in {folder}", flush=True)
    with open_database(name, folder) as database, valkey_beside(name) as valkey:
        plan = plan_for(name, arguments)
        asyncio.run(database.clock.install())
        keys = asyncio.run(issue_keys(database.store_url))
        network = BadNetwork(random.Random(plan.seed)) if plan.has_bad_network else None
        cluster = Cluster(
            folder, database, valkey, plan.lease_seconds, keys, network, result_store(name, folder)
        )
        return asyncio.run(run_chaos(database, cluster, keys, plan, arguments.jobs))


def result_store(name: str, folder: Path) -> ResultStore:
    """Return a bucket for the replicas on PostgreSQL, which share it; SQLite has the folder of its server."""
    return BucketStore(folder) if name == POSTGRESQL else FolderStore(folder / "data" / "artifacts")


def valkey_beside(name: str) -> AbstractContextManager[ValkeyServer | None]:
    """Return a Valkey server for the replicas on PostgreSQL; SQLite has a single control plane."""
    return ValkeyServer() if name == POSTGRESQL else nullcontext()


def plan_for(name: str, arguments: argparse.Namespace) -> Plan:
    is_shared = name == POSTGRESQL
    return Plan(
        num_kills=arguments.kills,
        kill_pause=arguments.kill_pause,
        seconds=arguments.seconds,
        num_freezes=arguments.freezes,
        num_server_freezes=arguments.server_freezes,
        num_transaction_freezes=arguments.transaction_freezes if is_shared else 0,
        goes_on_seconds=arguments.goes_on_seconds,
        num_blackouts=arguments.blackouts if is_shared else 0,
        num_valkey_kills=arguments.valkey_kills if is_shared else 0,
        num_database_restarts=arguments.database_restarts if is_shared else 0,
        num_full_disks=arguments.full_disks,
        num_clock_steps=arguments.clock_steps,
        num_bucket_outages=arguments.bucket_outages if is_shared else 0,
        num_cut_uploads=arguments.cut_uploads if is_shared else 0,
        bucket_away_seconds=arguments.bucket_away_seconds,
        num_database_outages=arguments.database_outages if is_shared else 0,
        database_away_seconds=arguments.database_away_seconds,
        num_download_kills=arguments.download_kills,
        num_decode_kills=arguments.decode_kills,
        num_decode_freezes=arguments.decode_freezes,
        num_several_kills=arguments.several_kills,
        has_bad_network=arguments.bad_network,
        longest_seconds=3_600.0 * arguments.hours / (2 if arguments.database == "both" else 1),
        lease_seconds=arguments.lease_seconds,
        webhook_grace_seconds=arguments.webhook_grace,
        seed=arguments.seed,
    )


async def run_chaos(database: Database, cluster: Cluster, keys: Keys, plan: Plan, num_jobs: int) -> Outcome:
    started = time.monotonic()
    records = Records(database.store_url)
    try:
        await cluster.start()
        async with receiving() as receiver, listening(receiver, cluster.url, keys.tenants) as log:
            deadline = started + plan.longest_seconds
            clients = Clients(cluster.url, num_jobs, keys.tenants, receiver.url, deadline)
            injector = FaultInjector(cluster, records, plan, database, clients.seconds_to_submit)
            faults = asyncio.create_task(injector.run())
            progress = asyncio.create_task(print_progress(database.name, clients, injector, plan))
            await asyncio.gather(clients.run(until=faults), faults)
            await until_finished(records)
            await until_sent(records, plan.webhook_grace_seconds)
            await clients.trespassers.read_lists(clients.owners)
            await write_late(cluster.url, keys.worker, injector.toll.hurt, await records.last_tokens())
            await cluster.read_fenced()
            files = await cluster.results.digests()
            progress.cancel()
    finally:
        await cluster.stop()
    toll = injector.toll
    outcome = Outcome(
        database=database.name,
        plan=plan,
        toll=toll,
        verdict=await audit(
            records,
            files,
            clients.told,
            clients.owners,
            toll.hurt,
            explained_by(toll.hurt, toll.excused),
            cluster.ledger.read_text(encoding="utf-8").splitlines(),
        ),
        webhooks=await audit_webhooks(records, log, clients.owners),
        crossings=clients.trespassers.crossings,
        network=cluster.network.chunks if cluster.network else None,
        followed=clients.followed,
        failed_starts=cluster.failed_starts,
        fenced_writes=cluster.fenced_writes,
        seconds=time.monotonic() - started,
        setup=setup_of(cluster),
    )
    await clients.trespassers.close()
    await records.close()
    return outcome


def setup_of(cluster: Cluster) -> dict[str, object]:
    return {
        "agents": len(cluster.agents),
        "control planes": len(cluster.servers),
        "tenants": NUM_TENANTS,
        "jobs at a time and agent": MAX_JOBS,
        "job seconds": JOB_SECONDS,
    }


async def until_finished(records: Records) -> None:
    """Wait until every job is final, or time is over; the audit then reports the others."""
    deadline = time.monotonic() + _DRAIN_SECONDS
    while await records.num_unfinished() and time.monotonic() < deadline:
        await asyncio.sleep(0.2)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--long", action="store_true", help="the defaults of `make chaos-long`")
    parser.add_argument("--hours", type=float, default=24.0, help="inject nothing after so long (default 24)")
    parser.add_argument("--database", choices=[*control_database.NAMES, "both"], default="both")
    parser.add_argument("--jobs", type=int, default=300, help="at least so many (default 300)")
    parser.add_argument("--kills", type=int, default=36, help="at least so many (default 36)")
    parser.add_argument("--kill-pause", type=float, default=2.0, help="mean seconds between kills")
    parser.add_argument("--seconds", type=float, default=75.0, help="for at least so long (default 75)")
    parser.add_argument("--freezes", type=int, default=3, help="workers frozen past their lease (default 3)")
    parser.add_argument("--server-freezes", type=int, default=2, help="of a control plane (default 2)")
    parser.add_argument(
        "--transaction-freezes", type=int, default=3, help="of a control plane that has the lock (default 3)"
    )
    parser.add_argument(
        "--goes-on-seconds", type=float, default=10.0, help="until another one must write (default 10)"
    )
    parser.add_argument("--blackouts", type=int, default=2, help="both replicas killed at once (default 2)")
    parser.add_argument("--valkey-kills", type=int, default=3, help="and restarts (default 3)")
    parser.add_argument("--database-restarts", type=int, default=2, help="of PostgreSQL (default 2)")
    parser.add_argument("--full-disks", type=int, default=2, help="of a control plane, for a while")
    parser.add_argument("--clock-steps", type=int, default=2, help="of the database's clock (default 2)")
    parser.add_argument("--bucket-outages", type=int, default=1, help="of the bucket beside PostgreSQL")
    parser.add_argument("--cut-uploads", type=int, default=1, help="with the bucket away from then on")
    parser.add_argument("--bucket-away-seconds", type=float, default=15.0, help="each time (default 15)")
    parser.add_argument("--database-outages", type=int, default=1, help="of PostgreSQL (default 1)")
    parser.add_argument("--database-away-seconds", type=float, default=30.0, help="each time (default 30)")
    parser.add_argument("--download-kills", type=int, default=1, help="of a worker that fetches its model")
    parser.add_argument("--decode-kills", type=int, default=2, help="of workers that only decode")
    parser.add_argument("--decode-freezes", type=int, default=1, help="past their lease (default 1)")
    parser.add_argument("--several-kills", type=int, default=2, help="of a worker of several models")
    parser.add_argument("--bad-network", action="store_true", help="between agents and control planes")
    parser.add_argument("--lease-seconds", type=float, default=9.0, help="heartbeats: a third of it")
    parser.add_argument(
        "--webhook-grace", type=float, default=90.0, help="seconds for the last ones to come (default 90)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of what is hurt, and when (default 1)")
    parser.add_argument("--folder", type=Path, help="where logs and data go; by default a temporary folder")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the result files go")
    if parser.parse_known_args()[0].long:
        parser.set_defaults(**_LONG, bad_network=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
