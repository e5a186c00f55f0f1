"""A control plane whose disk is full: unavailable until there is room again, and then as before.

A limit on the size of files stands for the full disk: like a quota, it has every write fail that needs room.
"""

import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from support.hand_worker import HandWorker
from support.waiting import HANG_SECONDS

JOB = {"input": {"prompt": "a star"}}


@pytest.fixture
async def process(tmp_path: Path) -> AsyncGenerator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "diffuserve", "api", "--port", "0", "--data-dir", str(tmp_path / "data")]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
async def http(process: "subprocess.Popen[str]") -> AsyncGenerator[httpx.AsyncClient]:
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    async with httpx.AsyncClient(base_url=address, timeout=HANG_SECONDS, trust_env=False) as http:
        yield http


@contextmanager
def full_disk(pid: int) -> Iterator[None]:
    process = psutil.Process(pid)
    before = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (0, before[1]))
    yield
    process.rlimit(psutil.RLIMIT_FSIZE, before)


async def test_a_full_disk_makes_the_server_unavailable_until_there_is_room(
    process: "subprocess.Popen[str]", http: httpx.AsyncClient
) -> None:
    worker = await HandWorker.register(http)
    await http.post("/v1/jobs", json=JOB)
    (lease,) = await worker.claim()
    assert (await http.get("/readyz")).status_code == 200
    with full_disk(process.pid):
        refused = await http.post("/v1/jobs", json=JOB)
        upload = await worker.upload(lease, "0.png")
        not_ready = await http.get("/readyz")
        for response in (refused, upload, not_ready):
            assert (response.status_code, response.json()["code"]) == (503, "server_unavailable")
            assert response.json()["retryable"]
            assert "retry-after" in response.headers
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get(f"/v1/jobs/{lease.job_id}")).status_code == 200, "what is stored can be read"
    assert (await http.get("/readyz")).status_code == 200
    assert (await worker.complete(lease)).status_code == 200
    assert (await http.post("/v1/jobs", json=JOB)).status_code == 202
