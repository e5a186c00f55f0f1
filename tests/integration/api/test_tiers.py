"""Some step counts and sizes alone are drawn: of jobs, of batches, of the flat API and of OpenAI's."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from diffuserve.api.config import ApiConfig
from diffuserve.domain.models.tiers import TierPolicy, Tiers
from support.hand_worker import HandWorker

ODD = {"num_inference_steps": 5, "width": 100, "height": 60}
USED = {"num_inference_steps": 4, "width": 128, "height": 64}


@pytest.fixture(params=[TierPolicy.NEAREST])
def config(request: pytest.FixtureRequest) -> ApiConfig:
    tiers = Tiers(steps=(4, 8, 20), sizes=("64x64", "128x64"), policy=request.param)
    return ApiConfig(poll_seconds=0.2, tiers={"hand": tiers})


@pytest.fixture
def app(make_app: Callable[[ApiConfig], FastAPI], config: ApiConfig) -> FastAPI:
    return make_app(config)


pytestmark = pytest.mark.usefixtures("worker")

refuses = pytest.mark.parametrize("config", [TierPolicy.REFUSE], indirect=True)


async def accepted(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await http.post(path, json=body)
    assert response.is_success, response.text
    document: dict[str, Any] = response.json()
    return document


async def test_a_job_has_the_nearest_values_tells_what_was_asked_and_pays_for_what_is_used(
    http: httpx.AsyncClient,
) -> None:
    job = await accepted(http, "/v1/jobs", {"input": {"prompt": "a cat", **ODD}})
    assert {name: job["input"][name] for name in USED} == USED
    assert job["asked"] == ODD
    exact = await accepted(http, "/v1/jobs", {"input": {"prompt": "a cat", **USED}})
    assert exact["asked"] is None
    assert exact["cost_seconds"] == job["cost_seconds"]
    plain = await accepted(http, "/v1/jobs", {"input": {"prompt": "a cat"}})
    assert (plain["asked"], plain["input"]["num_inference_steps"]) == (None, 4)
    stored = (await http.get(job["urls"]["self"])).json()
    assert stored["asked"] == ODD


async def test_the_items_of_a_batch_have_the_nearest_values_too(http: httpx.AsyncClient) -> None:
    items = [{"custom_id": "odd", "input": {"prompt": "a cat", **ODD}}]
    await accepted(http, "/v1/batches", {"items": items})
    [job] = (await http.get("/v1/jobs")).json()["data"]
    assert (job["custom_id"], job["asked"]) == ("odd", ODD)
    assert {name: job["input"][name] for name in USED} == USED


async def test_the_flat_api_tells_the_values_that_it_uses(http: httpx.AsyncClient) -> None:
    body = {"prompt": "a cat", "steps": 5, "width": 100, "height": 60}
    assert (await accepted(http, "/generate", body))["adjusted"] == {"steps": 4, "width": 128, "height": 64}
    assert (await accepted(http, "/generate", {"prompt": "a cat"}))["adjusted"] is None


async def test_openais_sizes_are_the_nearest_and_the_response_tells_them(
    http: httpx.AsyncClient, busy_worker: HandWorker
) -> None:
    body = {"prompt": "a cat", "size": "1792x1024"}
    assert (await accepted(http, "/v1/images/generations", body))["size"] == "128x64"


async def test_models_show_what_is_allowed_and_their_defaults_are(http: httpx.AsyncClient) -> None:
    model = (await http.get("/v1/models/hand")).json()
    assert model["tiers"] == {"steps": [4, 8, 20], "sizes": ["64x64", "128x64"], "policy": "nearest"}
    assert model["defaults"]["num_inference_steps"] == 4


@refuses
async def test_other_values_are_refused_and_the_allowed_ones_named(http: httpx.AsyncClient) -> None:
    steps = await http.post("/v1/jobs", json={"input": {"prompt": "a cat", "num_inference_steps": 5}})
    assert steps.status_code == 422
    assert "with 4, 8 or 20 steps alone" in steps.text
    size = await http.post("/v1/images/generations", json={"prompt": "a cat", "size": "100x60"})
    assert size.status_code == 400
    assert (size.json()["error"]["param"], "64x64 or 128x64" in size.text) == ("size", True)
    flat = await http.post("/generate", json={"prompt": "a cat", "steps": 5})
    assert "steps" in [error["field"] for error in flat.json()["errors"]]
    items = [{"custom_id": "odd", "input": {"prompt": "a cat", "width": 100}}]
    batch = await http.post("/v1/batches", json={"items": items})
    assert (batch.status_code, "64x64 or 128x64" in batch.text) == (422, True)
    await accepted(http, "/v1/jobs", {"input": {"prompt": "a cat", **USED}})
