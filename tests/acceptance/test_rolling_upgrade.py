"""Control planes and workers of an earlier version and of this one, side by side as in a rolling upgrade."""

import asyncio
import itertools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import pytest

from support.earlier_version import TODAY, environment_of, null_engine, unpack_earlier
from support.hand_worker import PNG
from support.ports import free_port
from support.postgres import PostgresServer
from support.valkey import ValkeyServer
from support.waiting import HANG_SECONDS, eventually

MORE_JOBS = 5  # of each worker, before the upgrade goes on
_DIFFUSERVE = (sys.executable, "-m", "diffuserve")


@dataclass
class Fleet:
    """Processes of two versions on one database; clients know the addresses of both control planes."""

    folder: Path
    earlier: Path
    settings: dict[str, str]
    ports: tuple[int, int] = field(default_factory=lambda: (free_port(), free_port()))
    accepted: list[str] = field(default_factory=list)
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def start(self, sources: Path, *arguments: str) -> "subprocess.Popen[bytes]":
        environment = environment_of(sources) | self.settings
        log_path = self.folder / f"{len(self.processes)}-{arguments[0]}.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen([*_DIFFUSERVE, *arguments], env=environment, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    async def control_plane(self, sources: Path, port: int) -> "subprocess.Popen[bytes]":
        """Start one, and return once it answers."""
        process = self.start(sources, "api", "--port", str(port))
        async with self.client(port) as http:

            async def answers() -> bool:
                assert process.poll() is None, f"the control plane ended; its log is in {self.folder}"
                try:
                    return (await http.get("/healthz")).is_success
                except httpx.TransportError:
                    return False

            await eventually(answers)
        return process

    def worker(self, sources: Path, name: str, port: int) -> "subprocess.Popen[bytes]":
        engine = null_engine(self.ledger(name), seconds=0.2)
        where = ("--server", f"http://127.0.0.1:{port}", "--name", name, "--max-jobs", "2")
        return self.start(sources, "worker", "--model", "null", *where, "--engine-command", engine)

    async def each_works(self, *names: str) -> None:
        """Wait until each of these workers has run more jobs than now."""
        goals = {name: len(self.ran(name)) + MORE_JOBS for name in names}
        await eventually(lambda: all(len(self.ran(name)) >= goal for name, goal in goals.items()))

    def ran(self, name: str) -> list[str]:
        """Return the jobs that a worker's engine has run."""
        ledger = self.ledger(name)
        lines = ledger.read_text("utf-8").splitlines() if ledger.exists() else []
        return [re.split(r"[-: ]", line)[0] for line in lines]

    def ledger(self, name: str) -> Path:
        return self.folder / f"{name}.ledger"

    def client(self, port: int) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=HANG_SECONDS, trust_env=False)

    @asynccontextmanager
    async def under_load(self) -> AsyncIterator[None]:
        """Submit jobs at the two control planes in turn, throughout."""
        is_over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._submit_until(is_over))
            yield
            is_over.set()

    async def _submit_until(self, is_over: asyncio.Event) -> None:
        async with self.client(self.ports[0]) as one, self.client(self.ports[1]) as two:
            for number in itertools.count():
                if is_over.is_set():
                    return
                first, second = (one, two) if number % 2 else (two, one)
                async with asyncio.timeout(HANG_SECONDS):
                    self.accepted.append(await _submit(number, itertools.cycle([first, second])))
                await asyncio.sleep(0.05)


async def _submit(number: int, control_planes: Iterator[httpx.AsyncClient]) -> str:
    """Return the id of an accepted job; one control plane after the other is asked until one answers."""
    body = {"input": {"prompt": f"star {number}"}, "model": "null"}
    for http in control_planes:
        try:
            response = await http.post("/v1/jobs", json=body, headers={"idempotency-key": f"star-{number}"})
        except httpx.TransportError:
            await asyncio.sleep(0.05)
            continue
        if response.status_code != httpx.codes.SERVICE_UNAVAILABLE:
            return str(response.raise_for_status().json()["id"])
        await asyncio.sleep(0.05)
    raise AssertionError("the control planes go on for ever")


@pytest.fixture
def fleet(tmp_path: Path, postgres: PostgresServer, own_valkey: ValkeyServer) -> Iterator[Fleet]:
    settings = {
        "DIFFUSERVE_DATABASE_URL": postgres.create_database("rolling_upgrade"),
        "DIFFUSERVE_VALKEY_URL": own_valkey.url,
        "DIFFUSERVE_DATA_DIR": str(tmp_path / "data"),
        "DIFFUSERVE_CACHE_DIR": str(tmp_path / "cache"),
        "DIFFUSERVE_PROMPT_FILTER": "none",
        "DIFFUSERVE_LEASE_SECONDS": "600",  # a busy machine loses no lease
    }
    fleet = Fleet(tmp_path, unpack_earlier(tmp_path), settings)
    yield fleet
    for process in fleet.processes:
        process.kill()
        process.wait()


async def end(process: "subprocess.Popen[bytes]") -> None:
    """Stop a process as an operator does."""
    process.terminate()
    await has_ended(process)


async def has_ended(process: "subprocess.Popen[bytes]") -> None:
    """Wait until the process ends by itself; it must do so without an error."""
    assert await asyncio.to_thread(process.wait, HANG_SECONDS) == 0


@pytest.mark.slow
async def test_a_rolling_upgrade_loses_no_job_and_runs_none_twice(fleet: Fleet) -> None:
    """Go on as "Upgrade" says: the schema, the control planes one by one, then the workers one by one.

    One new worker begins early, at the old control plane, which is restarted as a new one.
    """
    one, two = fleet.ports
    old_plane = await fleet.control_plane(fleet.earlier, one)
    old_workers = [fleet.worker(fleet.earlier, "old-at-old", one)]
    async with fleet.under_load():
        await fleet.each_works("old-at-old")
        await has_ended(fleet.start(TODAY, "db", "upgrade"))
        await fleet.each_works("old-at-old")
        await fleet.control_plane(TODAY, two)
        old_workers.append(fleet.worker(fleet.earlier, "old-at-new", two))
        fleet.worker(TODAY, "new-at-old", one)
        await fleet.each_works("old-at-old", "old-at-new", "new-at-old")
        await end(old_plane)
        await fleet.control_plane(TODAY, one)
        fleet.worker(TODAY, "new-at-new", two)
        await fleet.each_works("old-at-old", "old-at-new", "new-at-old", "new-at-new")
        for worker in old_workers:
            await end(worker)
        await fleet.each_works("new-at-old", "new-at-new")
    await all_are_there(fleet)
    names = ("old-at-old", "old-at-new", "new-at-old", "new-at-new")
    runs = Counter(itertools.chain.from_iterable(map(fleet.ran, names)))
    assert runs == Counter(fleet.accepted)


async def all_are_there(fleet: Fleet) -> None:
    """Wait until each accepted job has succeeded, and check its file; nothing was published twice."""
    for port in fleet.ports:
        async with fleet.client(port) as http:
            for job_id in fleet.accepted:
                await eventually(partial(_has_succeeded, http, job_id))
                assert (await http.get(f"/v1/jobs/{job_id}/result")).content == PNG
            assert "diffusion_double_publishes_total 0.0" in (await http.get("/metrics")).text


async def _has_succeeded(http: httpx.AsyncClient, job_id: str) -> bool:
    status = (await http.get(f"/v1/jobs/{job_id}")).raise_for_status().json()["status"]
    assert status in ("queued", "running", "succeeded")
    return bool(status == "succeeded")
