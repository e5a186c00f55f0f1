"""CPU time of clients that only wait, and what they leave to others: this version beside an earlier one.

    python -m benchmarks followers                          # beside the commit before feeds were shared
    python -m benchmarks followers --before eaea179 --rounds 5
    python -m benchmarks followers --only after

A server on SQLite, without workers, is one process; the clients are this one. `waits`: clients of
`GET /v1/jobs/{id}?wait=60`, each for a job of its own; `streams`: the same by server-sent events;
`workers`: idle ones, each in a claim and in a wait for control commands; `queued`: one GET after another,
each of another job in a queue of 800; `crowd`: streams of one tenant on one queued job, while another
tenant gets a job of its own fifty times a second; `live`: the same crowd once the job runs and reports
progress twice a second. The CPU time of a server that has nobody, or the prober alone, is subtracted.
Nothing else should run on the machine.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.control.follower_load import Follower, Prober, follow, get_request
from benchmarks.control.jobs import REGISTRATION
from benchmarks.control.load import Connection, post_request
from benchmarks.control.processes import DIFFUSERVE, Program, api_command, cpu_seconds, free_port
from benchmarks.shared.places import RESULTS, ROOT
from benchmarks.shared.report import markdown_table, read_conditions, write_report

_BEFORE, _AFTER = "before", "after"
_PACKAGES = ("fastapi", "uvicorn", "uvloop", "sse-starlette", "sqlalchemy")
_START_SECONDS = 60.0
_OPEN_SECONDS = 60.0
_PROGRESS_SECONDS = 0.5
_UNBOUNDED = {"max_running": 1_000_000, "max_queued": 1_000_000}
_NUM_QUEUED = 800
_NUM_GETS = 400
_NUM_WORKERS = 40
_NEW_LIMITS: Mapping[str, int | None] = {"reads_per_second": None, "max_waits": None}
_TITLE = "# Clients that wait"
_ABOUT = (
    "Medians over the rounds; the sides take turns. `ms` are CPU milliseconds of the server per client or "
    "worker and second, or per GET; `core` is the part of one core that all followers together take. In the "
    "second table GET is another tenant's."
)


@dataclass(frozen=True, kw_only=True)
class Side:
    """A version of the server: where its source is, and the limits that its plans know."""

    name: str
    source: Path
    plan: Mapping[str, int | None]


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """Followers of one job: how many there are, what they cost, and the latency of another tenant's GET."""

    num_open: int
    core: float
    p99_ms: float
    max_ms: float
    num_events: int


@dataclass(frozen=True, kw_only=True)
class Round:
    """Figures of one side in one round."""

    side: str
    waits_ms: float
    streams_ms: float
    workers_ms: float
    queued_get_ms: float
    quiet_p99_ms: float
    crowd: Crowd
    live: Crowd


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Secrets of two tenants and a worker."""

    many: str
    other: str
    worker: str


@dataclass(frozen=True, kw_only=True)
class Plane:
    """A running server."""

    port: int
    pid: int
    keys: Keys

    async def post(self, key: str, path: str, content: Mapping[str, object]) -> dict[str, object]:
        async with Connection(self.port) as connection:
            answer = await connection.post(path, content, [f"Authorization: Bearer {key}"])
            assert answer.status < 300, answer.body
            return dict(answer.json() if answer.body else {})

    async def submit(self, key: str, priority: str = "standard") -> str:
        job = {"model": "null", "priority": priority, "input": {"prompt": "a red circle"}}
        return str((await self.post(key, "/v1/jobs", job))["id"])


def main() -> None:
    arguments = parse_arguments()
    with earlier_source(arguments.before) as before:
        sides = [
            Side(name=_BEFORE, source=before, plan={}),
            Side(name=_AFTER, source=ROOT / "src", plan=_NEW_LIMITS),
        ]
        chosen = [side for side in sides if arguments.only in (None, side.name)]
        rounds = [asyncio.run(measure(side, arguments)) for _ in range(arguments.rounds) for side in chosen]
    text = tables(rounds, arguments)
    print(text)
    if arguments.only is None:
        conditions = read_conditions(_PACKAGES) | {"before": arguments.before}
        content = {"rounds": [asdict(figures) for figures in rounds]}
        write_report(
            RESULTS / f"followers_{arguments.label}", content, f"{_TITLE}\n\n{text}\n\n{_ABOUT}", conditions
        )


@contextmanager
def earlier_source(commit: str) -> Iterator[Path]:
    """Check out a commit beside this one for as long as the context is open; yield its source folder."""
    with tempfile.TemporaryDirectory(prefix="diffuserve-before-") as folder:
        tree = Path(folder) / "tree"
        git = ("git", "-C", str(ROOT), "worktree")
        subprocess.run([*git, "add", "--detach", str(tree), commit], check=True, capture_output=True)
        try:
            yield tree / "src"
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True, capture_output=True)


async def measure(side: Side, arguments: argparse.Namespace) -> Round:
    """Measure one side on two fresh servers: clients that wait for their own jobs, then a crowd."""
    seconds = arguments.seconds
    async with served(side) as plane:
        job_ids = [await plane.submit(plane.keys.many) for _ in range(arguments.waits)]
        idle = await cpu_rate(plane, seconds)
        waits = [get_request(f"/v1/jobs/{job_id}?wait=60", plane.keys.many) for job_id in job_ids]
        waits_rate = await followed_rate(plane, waits, seconds, awaits_head=False)
        streams = [get_request(f"/v1/jobs/{job_id}/events", plane.keys.many) for job_id in job_ids]
        streams_rate = await followed_rate(plane, streams, seconds, awaits_head=True)
    async with served(side) as plane:
        workers_idle = await cpu_rate(plane, seconds)
        polls = await worker_polls(plane)
        workers_rate = await followed_rate(plane, polls, seconds, awaits_head=False)
        queued_get_ms = await measure_queued(plane)
    async with served(side) as plane:
        quiet, crowd, live = await measure_crowd(plane, arguments.followers, seconds)
    figures = Round(
        side=side.name,
        waits_ms=1_000 * (waits_rate - idle) / len(waits),
        streams_ms=1_000 * (streams_rate - idle) / len(streams),
        workers_ms=1_000 * (workers_rate - workers_idle) / _NUM_WORKERS,
        queued_get_ms=queued_get_ms,
        quiet_p99_ms=quiet,
        crowd=crowd,
        live=live,
    )
    print(figures, flush=True)
    return figures


async def worker_polls(plane: Plane) -> list[bytes]:
    """Register workers; return for each the requests of the two long polls in which it is idle."""
    requests, key = list[bytes](), plane.keys.worker
    for number in range(_NUM_WORKERS):
        worker_id = (await plane.post(key, "/v1/workers", REGISTRATION))["worker_id"]
        body = json.dumps({"claim_id": f"idle-{number}", "num_jobs": 1}).encode()
        path = f"/v1/workers/{worker_id}"
        requests += [
            post_request(f"{path}/claim?wait=25", body, [f"Authorization: Bearer {key}"]),
            get_request(f"{path}/control?wait=25", key),
        ]
    return requests


async def measure_queued(plane: Plane) -> float:
    """Return the CPU milliseconds of a GET of a queued job."""
    job_ids = [await plane.submit(plane.keys.many) for _ in range(_NUM_QUEUED)]
    requests = [get_request(f"/v1/jobs/{job_id}", plane.keys.many) for job_id in job_ids[-_NUM_GETS:]]
    async with Connection(plane.port) as connection:
        before = cpu_seconds(plane.pid)
        for request in requests:
            assert (await connection.send(request)).status == 200
        return 1_000 * (cpu_seconds(plane.pid) - before) / len(requests)


async def followed_rate(
    plane: Plane, requests: Sequence[bytes], seconds: float, *, awaits_head: bool
) -> float:
    followers = await follow(plane.port, requests, _OPEN_SECONDS, awaits_head=awaits_head)
    assert len(followers) == len(requests), f"{len(followers)} of {len(requests)} are open"
    await asyncio.sleep(1.0)
    rate = await cpu_rate(plane, seconds)
    assert awaits_head or not any(follower.head for follower in followers), "somebody had an answer"
    close(followers)
    await asyncio.sleep(1.0)
    return rate


async def measure_crowd(plane: Plane, num_followers: int, seconds: float) -> tuple[float, Crowd, Crowd]:
    """Return the prober's p99 without followers, and the crowd before and while its job runs."""
    job_id = await plane.submit(plane.keys.many)
    other = get_request(f"/v1/jobs/{await plane.submit(plane.keys.other, 'batch')}", plane.keys.other)
    quiet = Prober(plane.port, other)
    quiet_rate, _ = await asyncio.gather(cpu_rate(plane, seconds), quiet.run(seconds))
    requests = [get_request(f"/v1/jobs/{job_id}/events", plane.keys.many)] * num_followers
    followers = await follow(plane.port, requests, _OPEN_SECONDS, awaits_head=True)
    await asyncio.sleep(1.0)
    crowd = await probe_crowd(plane, followers, other, quiet_rate, seconds)
    reporting = asyncio.create_task(report_progress(plane, job_id))
    await asyncio.sleep(1.0)
    live = await probe_crowd(plane, followers, other, quiet_rate, seconds)
    reporting.cancel()
    close(followers)
    return quiet.p99_ms, crowd, live


async def probe_crowd(
    plane: Plane, followers: Sequence[Follower], other: bytes, quiet_rate: float, seconds: float
) -> Crowd:
    prober = Prober(plane.port, other)
    before = sum(follower.num_events for follower in followers)
    rate, _ = await asyncio.gather(cpu_rate(plane, seconds), prober.run(seconds))
    return Crowd(
        num_open=len(followers),
        core=rate - quiet_rate,
        p99_ms=prober.p99_ms,
        max_ms=prober.max_ms,
        num_events=sum(follower.num_events for follower in followers) - before,
    )


async def report_progress(plane: Plane, job_id: str) -> None:
    """Lease the job, and report its progress as often as a worker does."""
    worker_id = (await plane.post(plane.keys.worker, "/v1/workers", REGISTRATION))["worker_id"]
    claim = {"claim_id": "claim", "num_jobs": 1}
    claimed = await plane.post(plane.keys.worker, f"/v1/workers/{worker_id}/claim", claim)
    leases = claimed["leases"]
    assert isinstance(leases, list)
    assert leases[0]["job_id"] == job_id
    async with Connection(plane.port) as connection:
        for step in range(1_000_000):
            body = {
                "lease_token": leases[0]["lease_token"],
                "phase": "denoise",
                "step": step,
                "total": 1_000_000,
            }
            authorization = f"Authorization: Bearer {plane.keys.worker}"
            await connection.post(f"/v1/leases/{job_id}/events", body, [authorization])
            await asyncio.sleep(_PROGRESS_SECONDS)


async def cpu_rate(plane: Plane, seconds: float) -> float:
    """Return the CPU seconds that the server takes in a second."""
    clock = asyncio.get_running_loop().time
    before, started = cpu_seconds(plane.pid), clock()
    await asyncio.sleep(seconds)
    return (cpu_seconds(plane.pid) - before) / (clock() - started)


def close(followers: Sequence[Follower]) -> None:
    for follower in followers:
        follower.close()


@asynccontextmanager
async def served(side: Side) -> AsyncIterator[Plane]:
    """Run a server with keys and a model, in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix=f"diffuserve-bench-{side.name}-"))
    environment = {
        "PYTHONPATH": str(side.source),
        "DIFFUSERVE_PLANS": json.dumps({"unbounded": {**_UNBOUNDED, **side.plan}}),
        "DIFFUSERVE_DEFAULT_PLAN": "unbounded",
        "DIFFUSERVE_LEASE_SECONDS": "600",
        "DIFFUSERVE_MAX_BACKLOG_SECONDS": "1e12",
    }
    keys = create_keys(folder, environment)
    port = free_port()
    server = Program("server", api_command(port, folder / "data", None), environment, folder / "server.log")
    server.start()
    try:
        await until_listening(server, port)
        plane = Plane(port=port, pid=server.pid, keys=keys)
        await plane.post(keys.worker, "/v1/workers", REGISTRATION)
        yield plane
    finally:
        await asyncio.to_thread(server.stop)


def create_keys(folder: Path, environment: dict[str, str]) -> Keys:
    def create(*options: str) -> str:
        command = [*DIFFUSERVE, "keys", "create", "--data-dir", str(folder / "data"), *options]
        told = subprocess.run(
            command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=True
        )
        return told.stdout.strip()

    return Keys(
        many=create("--tenant", "many"),
        other=create("--tenant", "other"),
        worker=create("--role", "worker"),
    )


async def until_listening(server: Program, port: int) -> None:
    async with asyncio.timeout(_START_SECONDS):
        while True:
            try:
                async with Connection(port):
                    return
            except OSError:
                assert server.is_alive, "the server ended; see its log"
            await asyncio.sleep(0.05)


def tables(rounds: Sequence[Round], arguments: argparse.Namespace) -> str:
    sides = [name for name in (_BEFORE, _AFTER) if any(figures.side == name for figures in rounds)]
    of_side = {name: [figures for figures in rounds if figures.side == name] for name in sides}
    own = markdown_table(
        f"{arguments.waits} clients, each waiting for its own job (target: 0.4 ms); idle workers; a GET of "
        f"one of {_NUM_QUEUED} queued jobs",
        [_own_row(name, figures) for name, figures in of_side.items()],
    )
    crowd = markdown_table(
        f"{arguments.followers:,} streams on one job (targets: 0.10 of a core, p99 100 ms)",
        [
            _crowd_row(name, kind, [getattr(figures, kind) for figures in of_side[name]], of_side[name])
            for name in sides
            for kind in ("crowd", "live")
        ],
    )
    return f"{own}\n\n{crowd}"


def _own_row(name: str, rounds: Sequence[Round]) -> dict[str, str]:
    waits, streams = [row.waits_ms for row in rounds], [row.streams_ms for row in rounds]
    return {
        "version": name,
        "`?wait=`, ms": f"**{statistics.median(waits):.3f}**",
        "single rounds": f"{min(waits):.3f}-{max(waits):.3f} ({len(rounds)})",
        "streams, ms": f"**{statistics.median(streams):.3f}**",
        "single rounds of streams": f"{min(streams):.3f}-{max(streams):.3f}",
        "idle worker, ms": f"**{statistics.median([row.workers_ms for row in rounds]):.3f}**",
        "GET of a queued job, ms": f"**{statistics.median([row.queued_get_ms for row in rounds]):.2f}**",
    }


def _crowd_row(name: str, kind: str, crowds: Sequence[Crowd], rounds: Sequence[Round]) -> dict[str, str]:
    cores = [crowd.core for crowd in crowds]
    return {
        "version": name,
        "the job": "is queued" if kind == "crowd" else "runs, with progress twice a second",
        "open": f"{statistics.median([crowd.num_open for crowd in crowds]):.0f}",
        "core": f"**{statistics.median(cores):.3f}**",
        "single rounds": f"{min(cores):.3f}-{max(cores):.3f} ({len(rounds)})",
        "events to all": f"{statistics.median([crowd.num_events for crowd in crowds]):,.0f}",
        "GET p99 ms": f"**{statistics.median([crowd.p99_ms for crowd in crowds]):.1f}**",
        "slowest GET ms": f"{max(crowd.max_ms for crowd in crowds):.1f}",
        "p99 without followers": f"{statistics.median([row.quiet_p99_ms for row in rounds]):.1f}",
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", default="eaea179", help="commit to compare with (default eaea179)")
    parser.add_argument("--only", choices=(_BEFORE, _AFTER), help="one side; writes no result file")
    parser.add_argument("--rounds", type=int, default=3, help="of each side, in turn (default 3)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a measurement (default 10)")
    parser.add_argument("--waits", type=int, default=160, help="clients with a job each (default 160)")
    parser.add_argument("--followers", type=int, default=2_000, help="streams on one job (default 2000)")
    parser.add_argument("--label", default="cpu", help="names the machine in the result's file name")
    return parser.parse_args()


if __name__ == "__main__":
    main()
