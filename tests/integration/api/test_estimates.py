"""What a job would take is told before it is submitted, and nothing is queued for it."""

from typing import Any

import httpx
import pytest

from diffuserve.domain.jobs.job import Job, QueueEstimate
from diffuserve.jobs.reads.outlook import Outlook

pytestmark = pytest.mark.usefixtures("worker")

BODY: dict[str, Any] = {"input": {"prompt": "a cat", "width": 128, "height": 64, "num_images": 2}}


async def test_an_estimate_is_what_the_job_then_costs(http: httpx.AsyncClient) -> None:
    estimate = (await http.post("/v1/jobs/estimate", json=BODY)).raise_for_status().json()
    assert (await http.get("/v1/jobs")).json()["data"] == []
    job = (await http.post("/v1/jobs", json=BODY)).raise_for_status().json()
    assert {name: estimate[name] for name in ("model", "cost_seconds")} == {
        name: job[name] for name in ("model", "cost_seconds")
    }
    assert (estimate["width"], estimate["height"], estimate["warnings"]) == (128, 64, [])


async def test_an_estimate_tells_the_wait_and_refuses_what_submission_refuses(
    http: httpx.AsyncClient,
) -> None:
    alone = (await http.post("/v1/jobs/estimate", json=BODY)).raise_for_status().json()
    assert 0 < alone["eta_s_low"] <= alone["eta_s_high"]
    for _ in range(20):
        (await http.post("/v1/jobs", json=BODY)).raise_for_status()
    behind = (await http.post("/v1/jobs/estimate", json=BODY)).raise_for_status().json()
    assert behind["eta_s_low"] > alone["eta_s_low"]
    late = BODY | {"deadline": 2 * alone["cost_seconds"]}
    refused, again = [await http.post(path, json=late) for path in ("/v1/jobs/estimate", "/v1/jobs")]
    assert (refused.status_code, refused.json()["code"]) == (503, "deadline_unreachable")
    assert refused.json().keys() == again.json().keys() >= {"eta_s_low", "eta_s_high"}
    (await http.post("/v1/jobs/estimate", json=late | {"best_effort": True})).raise_for_status()
    (await http.post("/v1/jobs/estimate", json=BODY | {"deadline": 3600})).raise_for_status()


async def test_what_is_odd_is_warned_of_and_what_is_wrong_refused(http: httpx.AsyncClient) -> None:
    odd = {"input": BODY["input"] | {"prompt": "<lora:ink:0.8> a cat"}}
    [warning] = (await http.post("/v1/jobs/estimate", json=odd)).raise_for_status().json()["warnings"]
    assert "lora" in warning.lower()
    wrong = {"input": BODY["input"] | {"width": 100}}
    refused, again = [await http.post(path, json=wrong) for path in ("/v1/jobs/estimate", "/v1/jobs")]
    assert refused.status_code == 422
    assert refused.json()["errors"] == again.json()["errors"]


async def test_an_estimate_with_a_deadline_asks_for_the_queue_once(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Job] = []
    foresee = Outlook.foresee

    async def counted(outlook: Outlook, job: Job) -> QueueEstimate:
        asked.append(job)
        return await foresee(outlook, job)

    monkeypatch.setattr(Outlook, "foresee", counted)
    (await http.post("/v1/jobs/estimate", json=BODY | {"deadline": 3600})).raise_for_status()
    assert len(asked) == 1
