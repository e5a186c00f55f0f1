"""Real agents whose files go to a bucket that fails at times."""

import hashlib
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from diffuserve.agent.agent import WorkerAgent
from diffuserve.agent.reporting import result_reporter
from diffuserve.client.http import HttpTransport
from diffuserve.client.leases import LeaseClient
from diffuserve.domain.errors import DownloadFailed, NotFound
from diffuserve.domain.jobs.checkpoint import CHECKPOINT_ID
from diffuserve.domain.jobs.claim import Claim
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.workers.worker import ModelOffer, Registration, Release
from diffuserve.storage import watch
from diffuserve.storage.base import checkpoint_folder
from diffuserve.storage.bucket import BucketArtifactStore
from diffuserve.testing.null_engine import NULL_SPEC
from support.faulty_proxy import CutRequest, CutResponse, FaultyProxy, Respond
from support.plane import NULL_ENGINE, Plane, until
from support.s3 import S3Server, bucket_at
from support.store_driver import REPORT
from support.waiting import HANG_SECONDS, eventually

Start = Callable[..., WorkerAgent]
STAR = {"model": "null", "input": {"prompt": "a star"}}


@pytest.fixture
def artifacts(proxy: FaultyProxy, bucket: str) -> BucketArtifactStore:
    return bucket_at(proxy.url, bucket, "results")


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A file with a line for each run of the engine's model."""
    return tmp_path / "ledger"


async def registered(plane: Plane) -> bool:
    return bool(await plane.store.operations.workers())


@pytest.fixture
async def agent(plane: Plane, ledger: Path) -> AsyncGenerator[psutil.Process]:
    """A process with an environment of its own, which holds no credentials."""
    engine = " ".join([*NULL_ENGINE, "--files", "1", "--ledger", str(ledger)])
    command = [sys.executable, "-m", "diffuserve", "worker", "--server", plane.url]
    environment = {"PATH": "/usr/bin:/bin", "DIFFUSERVE_CACHE_DIR": str(ledger.parent)}
    with subprocess.Popen([*command, "--engine-command", engine], env=environment) as process:
        try:
            await eventually(partial(registered, plane))
            yield psutil.Process(process.pid)
        finally:
            process.kill()


async def finished(http: httpx.AsyncClient, job: dict[str, Any]) -> dict[str, Any]:
    found = await http.get(job["urls"]["self"], params={"wait": 30})
    assert found.json()["status"] == "succeeded"
    return dict(found.json())


async def test_images_go_to_the_bucket_even_if_uploads_fail_at_first(
    plane: Plane, agent: psutil.Process, proxy: FaultyProxy, s3: S3Server, bucket: str, ledger: Path
) -> None:
    async with httpx.AsyncClient(base_url=plane.url, timeout=HANG_SECONDS) as http:
        job = await finished(http, (await http.post("/v1/jobs", json=STAR)).json())
        (artifact,) = job["result"]["artifacts"]
        image = await http.get(artifact["url"])
        assert image.headers["content-type"] == artifact["content_type"] == "image/png"
        assert hashlib.sha256(image.content).hexdigest() == artifact["sha256"]
        objects = s3.client.list_objects_v2(Bucket=bucket)["Contents"]
        assert [stored["Key"] for stored in objects] == [f"results/{job['id']}/1/0.png"]
        assert not [name for name in agent.environ() if name.startswith("AWS")]

        proxy.always = Respond(500)
        late = (await http.post("/v1/jobs", json=STAR)).json()
        await eventually(lambda: len(uploads(proxy, late)) >= 2)
        proxy.fail_next(CutRequest(), CutResponse())
        proxy.always = None
        assert (await finished(http, late))["attempt"] == 1
        assert len(uploads(proxy, late)) >= 5, "two responses of 500, two cut connections, and a success"
    assert ledger.read_text().split() == [f"{job['id']}-1", f"{late['id']}-1"], "each was generated once"


def uploads(proxy: FaultyProxy, job: dict[str, Any]) -> list[str]:
    return [path for method, path in proxy.requests if method == "PUT" and job["id"] in path]


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_reporter, "_UPLOAD_PAUSE_SECONDS", 0.0)


class Loss:
    """Empties the bucket whenever a completion is about to be checked, for some times."""

    def __init__(self, artifacts: BucketArtifactStore, num_times: int) -> None:
        self._artifacts = artifacts
        self._size = artifacts.size
        self.num_left = num_times

    async def size(self, key: str) -> int:
        if self.num_left:
            self.num_left -= 1
            await self._artifacts.delete(key.rpartition("/")[0])
        return await self._size(key)


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize(("num_times", "num_runs"), [(2, 1), (3, 2)])
async def test_an_image_that_is_missing_is_uploaded_again_and_generated_again_after_three_uploads(
    plane: Plane, start: Start, ledger: Path, monkeypatch: pytest.MonkeyPatch, num_times: int, num_runs: int
) -> None:
    assert isinstance(plane.artifacts, BucketArtifactStore)
    loss = Loss(plane.artifacts, num_times)
    monkeypatch.setattr(plane.artifacts, "size", loss.size)
    start("--files", "1", "--ledger", str(ledger))
    job = await until(plane, await plane.submit(), JobStatus.SUCCEEDED)
    assert (loss.num_left, job.attempt) == (0, num_runs)
    assert ledger.read_text().split() == [f"{job.id}-{number + 1}" for number in range(num_runs)]
    assert await plane.artifacts.size(f"{job.id}/{job.lease_token}/0.png") > 0


@pytest.mark.parametrize("is_noticed", [True, False], ids=["the control plane knows", "it does not know yet"])
async def test_a_bucket_that_vanished_is_waited_for_and_no_image_is_drawn_again(
    plane: Plane,
    start: Start,
    ledger: Path,
    s3: S3Server,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    is_noticed: bool,
) -> None:
    monkeypatch.setattr(watch, "_LOOK_SECONDS", 0.1 if is_noticed else 3_600.0)
    await plane.vanish()
    await plane.listen()
    start("--files", "1", "--ledger", str(ledger), max_jobs=2)
    await eventually(partial(registered, plane))
    s3.client.delete_bucket(Bucket=bucket)
    jobs = [await plane.submit() for _ in range(8)]
    await eventually(lambda: ledger.exists() and len(ledger.read_text().split()) >= 2)
    services = plane.app.state.services
    if is_noticed:
        await eventually(lambda: not services.storage.is_up)
    statuses = [await plane.status(job) for job in jobs]
    assert statuses.count(JobStatus.RUNNING) < len(jobs), "claims under way bring some more, but not all"
    s3.client.create_bucket(Bucket=bucket)
    for job in jobs:
        assert (await until(plane, job, JobStatus.SUCCEEDED)).attempt == 1
    assert len(ledger.read_text().split()) == len(jobs), "each was drawn once"


async def test_the_control_plane_tells_that_its_bucket_is_away(
    plane: Plane, s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_LOOK_SECONDS", 0.1)
    await plane.vanish()
    await plane.listen()
    s3.client.delete_bucket(Bucket=bucket)
    async with httpx.AsyncClient(base_url=plane.url, timeout=HANG_SECONDS) as http:

        async def is_told() -> bool:
            ready = await http.get("/readyz")
            return ready.status_code == 503 and ready.json()["code"] == "storage_away"

        await eventually(is_told)
        assert "diffusion_store_up 0.0" in (await http.get("/metrics")).text
        s3.client.create_bucket(Bucket=bucket)
        await eventually(lambda: plane.app.state.services.storage.is_up)
        assert "diffusion_store_up 1.0" in (await http.get("/metrics")).text


async def test_a_checkpoint_goes_to_the_bucket_and_comes_back_by_signed_urls(
    plane: Plane, proxy: FaultyProxy, tmp_path: Path
) -> None:
    client = LeaseClient(HttpTransport(plane.url))
    offer = ModelOffer(spec=NULL_SPEC)
    worker_id = (await client.register(Registration(models=(offer,), report=REPORT))).worker_id
    job = await plane.submit()
    (first,) = await client.claim(worker_id, Claim(claim_id="1", num_jobs=1), wait=0.0)
    for step in (3, 6):
        await client.keep_checkpoint(job.id, first.lease_token, step % 2, step, b"star" * step)
    await client.release(job.id, Release(lease_token=first.lease_token))
    (second,) = await client.claim(worker_id, Claim(claim_id="2", num_jobs=1), wait=0.0)
    assert second.checkpoint is not None
    assert second.checkpoint.step == 6
    fetched = await client.fetch_inputs(job.id, second.lease_token, (CHECKPOINT_ID,), tmp_path)
    assert fetched[CHECKPOINT_ID].read_bytes() == b"star" * 6
    await plane.artifacts.delete(checkpoint_folder(job.id, first.lease_token))
    with pytest.raises((NotFound, DownloadFailed)):
        await client.fetch_inputs(job.id, second.lease_token, (CHECKPOINT_ID,), tmp_path)
    await client.close()
