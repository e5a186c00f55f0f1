"""The database or the control plane is away for longer than leases last: the worker goes on, and nothing is
drawn again.

Real processes: `diffuserve api`, PostgreSQL, and a worker whose engine writes a line for each image it draws.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.plane import NULL_ENGINE
from support.postgres import PostgresServer
from support.waiting import HANG_SECONDS, block_until

LEASE_SECONDS = 6.0
JOB = {"model": "null", "input": {"prompt": "a star"}}
NUM_JOBS = 6
PROMETHEUS_SECONDS = 10.0
"""How long Prometheus waits for metrics, unless it is told otherwise."""


@dataclass
class Service:
    """A control plane with its database, and a worker; `ledger` has a line for each image that was drawn."""

    postgres: PostgresServer
    api: "subprocess.Popen[str]"
    http: httpx.Client
    ledger: Path
    log: Path

    def submit(self) -> str:
        return str(self.http.post("/v1/jobs", json=JOB).raise_for_status().json()["id"])

    def jobs(self) -> Mapping[str, Mapping[str, Any]]:
        """Return all jobs by their ids; none while they cannot be read."""
        listed = self.http.get("/v1/jobs")
        return {job["id"]: job for job in listed.json()["data"]} if listed.is_success else {}

    def num_jobs(self, status: str) -> int:
        return sum(job["status"] == status for job in self.jobs().values())

    def stop_database(self, away: Callable[[], None]) -> None:
        self.postgres.kill()
        away()
        self.postgres.revive()

    def freeze(self, away: Callable[[], None]) -> None:
        self.api.send_signal(signal.SIGSTOP)
        away()
        self.api.send_signal(signal.SIGCONT)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    ledger, log = tmp_path / "ledger", tmp_path / "api.log"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="diffuserve-postgres-")))
        folder.chmod(0o755)  # the server runs as a user of its own where we are root
        postgres = stack.enter_context(PostgresServer(folder / "data", fsync=False))
        settings = {
            "DIFFUSERVE_DATABASE_URL": postgres.create_database("outages"),
            "DIFFUSERVE_DATA_DIR": str(tmp_path / "data"),
            "DIFFUSERVE_LEASE_SECONDS": str(LEASE_SECONDS),
            "DIFFUSERVE_HEARTBEAT_SECONDS": str(LEASE_SECONDS / 3),
            "DIFFUSERVE_PORT": "0",
        }
        with log.open("w") as errors:
            command = [sys.executable, "-m", "diffuserve", "api"]
            environment = {**os.environ, **settings}
            api = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        stack.callback(end, api)
        assert api.stdout is not None
        url = api.stdout.readline().strip()
        engine = " ".join([*NULL_ENGINE, "--files", "1", "--seconds", "2", "--ledger", str(ledger)])
        command = [sys.executable, "-m", "diffuserve", "worker", "--server", url, "--max-jobs", "3"]
        worker = subprocess.Popen([*command, "--engine-command", engine], stderr=subprocess.DEVNULL)
        stack.callback(end, worker)
        http = stack.enter_context(httpx.Client(base_url=url, timeout=HANG_SECONDS, trust_env=False))
        block_until(lambda: http.get("/readyz").is_success)
        yield Service(postgres, api, http, ledger, log)


def end(process: "subprocess.Popen[Any]") -> None:
    process.send_signal(signal.SIGCONT)
    process.kill()
    process.communicate()


def tells_of_itself_without_the_database(service: Service) -> None:
    begin = time.monotonic()
    told = service.http.get("/metrics")
    seconds = time.monotonic() - begin
    assert seconds < PROMETHEUS_SECONDS / 2
    assert "diffusion_database_up 0.0" in told.text
    assert "diffusion_http_request_duration_seconds_count" in told.text
    assert "diffusion_workers" not in told.text


@pytest.mark.slow
@pytest.mark.parametrize("outage", [Service.stop_database, Service.freeze], ids=["database", "control plane"])
def test_an_outage_longer_than_two_leases_costs_no_image(
    service: Service, outage: Callable[[Service, Callable[[], None]], None]
) -> None:
    job_ids = [service.submit() for _ in range(NUM_JOBS)]
    block_until(lambda: service.num_jobs("running") == 3)
    assert "diffusion_database_up 1.0" in service.http.get("/metrics").text, "as Prometheus has read them"

    def away() -> None:
        """Wait for longer than two leases, and until what was running is drawn and cannot be reported."""
        time.sleep(2.5 * LEASE_SECONDS)
        block_until(lambda: len(service.ledger.read_text().split()) >= 3)

        if outage is Service.stop_database:
            tells_of_itself_without_the_database(service)

    outage(service, away)
    block_until(lambda: service.num_jobs("succeeded") == NUM_JOBS)
    assert [service.jobs()[job_id]["attempt"] for job_id in job_ids] == [1] * NUM_JOBS
    drawn = service.ledger.read_text().split()
    assert sorted(drawn) == sorted(f"{job_id}-1" for job_id in job_ids), "each image was drawn once"
    assert "no lease ends within the next" in service.log.read_text()
