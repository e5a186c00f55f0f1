"""What a job would take is told before it is submitted, and nothing is queued for it."""

from typing import Any

import httpx
import pytest

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


async def test_what_is_odd_is_warned_of_and_what_is_wrong_refused(http: httpx.AsyncClient) -> None:
    odd = {"input": BODY["input"] | {"prompt": "<lora:ink:0.8> a cat"}}
    [warning] = (await http.post("/v1/jobs/estimate", json=odd)).raise_for_status().json()["warnings"]
    assert "lora" in warning.lower()
    wrong = {"input": BODY["input"] | {"width": 100}}
    refused, again = [await http.post(path, json=wrong) for path in ("/v1/jobs/estimate", "/v1/jobs")]
    assert refused.status_code == 422
    assert refused.json()["errors"] == again.json()["errors"]
