"""The log about jobs and requests."""

import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from structlog.contextvars import get_contextvars

from diffuserve.api.config import ApiConfig
from diffuserve.api.following import job_log
from diffuserve.api.following.job_log import JobLog
from diffuserve.api.http import problems
from diffuserve.api.http.problem import Problem
from diffuserve.domain.jobs.job import EndedJob, JobStatus
from diffuserve.domain.tenant import Role
from diffuserve.jobs.store import JobStore
from diffuserve.telemetry.log_fields import FIELDS, IS_REPEATED
from diffuserve.wiring.control import running
from support.hand_worker import HandWorker
from support.waiting import eventually

PROMPT = "xyzzy"
JOB = {"input": {"prompt": PROMPT, "width": 128, "height": 64, "num_images": 2}}


@pytest.fixture(autouse=True)
def _everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="diffuserve")


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    return [vars(record)[FIELDS] for record in caplog.records if record.getMessage() == event]


async def test_each_job_that_ends_has_one_line_without_its_prompt(
    http: httpx.AsyncClient, worker: HandWorker, caplog: pytest.LogCaptureFixture
) -> None:
    ids = [(await http.post("/v1/jobs", json=JOB)).json()["id"] for _ in range(3)]
    succeeded, failed = await worker.claim(num_jobs=2)
    await worker.complete(succeeded)
    await worker.fail(failed)
    [waiting] = set(ids) - {succeeded.job_id, failed.job_id}
    await http.post(f"/v1/jobs/{waiting}/cancel")
    logged = {line["job_id"]: line for line in lines(caplog, "job finished")}
    assert [logged[job_id]["status"] for job_id in (succeeded.job_id, failed.job_id, waiting)] == [
        "succeeded", "failed", "canceled",
    ]  # fmt: skip
    assert len(lines(caplog, "job finished")) == 3
    warned = [vars(record)[FIELDS] for record in caplog.records if record.levelno == logging.WARNING]
    assert [line.get("job_id") for line in warned] == [failed.job_id], "a failure is a warning"
    line = logged[succeeded.job_id]
    assert (line["tenant"], line["model"], line["size"], line["steps"], line["images"]) == (
        "default", "hand", "128x64", 4, 2,
    )  # fmt: skip
    assert line["queue_seconds"] >= 0
    assert line["run_seconds"] >= 0
    assert "error" in logged[failed.job_id]
    assert PROMPT not in str(logged)


async def test_lines_of_a_request_have_its_id(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    def note(error: Exception) -> Problem:
        seen.append(get_contextvars())
        return Problem(status=404, code="x", detail="x")

    monkeypatch.setattr(problems, "problem_of", note)
    await http.get("/v1/jobs/job_1", headers={"x-request-id": "r-17"})
    assert seen == [{"request_id": "r-17", "tenant": "default", "job_id": "job_1"}]


async def test_the_throughput_is_logged_only_while_there_is_work(
    http: httpx.AsyncClient, worker: HandWorker, store: JobStore, caplog: pytest.LogCaptureFixture
) -> None:
    log = JobLog(store.operations)
    await log.report(10.0)
    assert lines(caplog, "throughput") == []
    for _ in range(3):
        await http.post("/v1/jobs", json=JOB)
    leases = await worker.claim()
    report = {"state": "occupied", "mean_batch": 2.5}
    await http.post(f"/v1/workers/{worker.id}/heartbeat", json={"report": report, "held": []})
    log.note(ended(images=4))
    await log.report(10.0)
    assert lines(caplog, "throughput") == [
        {"images_per_second": 0.4, "running": 1, "waiting": 2, "mean_batch": 2.5, "workers": 1}
    ]
    for lease in leases + await worker.claim(num_jobs=2):
        await worker.complete(lease)
    await log.report(10.0)
    assert len(lines(caplog, "throughput")) == 1


async def test_the_throughput_is_logged_again_and_again(
    http: httpx.AsyncClient,
    worker: HandWorker,
    store: JobStore,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_log, "_PERIOD_SECONDS", 0.01)
    await http.post("/v1/jobs", json=JOB)
    async with running(JobLog(store.operations).run()):
        await eventually(lambda: len(lines(caplog, "throughput")) > 1)


async def test_a_refused_key_is_logged_once_a_minute(
    make_app: Callable[[ApiConfig], FastAPI], store: JobStore, caplog: pytest.LogCaptureFixture
) -> None:
    await store.keys.create(Role.OPERATOR)
    transport = httpx.ASGITransport(make_app(ApiConfig()), client=("10.0.0.7", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://api.test") as http:
        response = await http.get("/v1/jobs", headers={"authorization": "Bearer KEY"})
    assert response.status_code == 401
    [record] = [record for record in caplog.records if record.getMessage() == "API key refused"]
    assert vars(record)[IS_REPEATED]
    assert vars(record)[FIELDS] == {
        "reason": "malformed API key: it must begin with dfs_",
        "client": "10.0.0.7",
    }


def ended(images: int) -> EndedJob:
    return EndedJob(
        id="job_1",
        tenant_id="ada",
        model="m",
        status=JobStatus.SUCCEEDED,
        input={"num_images": images},
        created_at=0.0,
        started_at=1.0,
        finished_at=2.0,
    )
