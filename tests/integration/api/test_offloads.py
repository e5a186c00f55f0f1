"""The API tells where the weights of a model's workers are."""

import asyncio
from dataclasses import asdict

import httpx

from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.residency import RESIDENT, Residency
from support.hand_worker import HandWorker

LAYERS = Residency(Offload.LAYERS, device_bytes=2, host_bytes=30, step_bytes=20)


async def test_models_and_workers_tell_which_weights_wait_on_the_host(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    second = await HandWorker.register(http, name="with a large GPU")
    await worker.beat("ready", residency=asdict(LAYERS))
    await second.beat("ready", residency=asdict(RESIDENT))
    while (await _model(http))["offloads"] != ["layers", "none"]:  # looked at once a second
        await asyncio.sleep(0.1)
    workers = (await http.get("/v1/workers")).raise_for_status().json()["data"]
    assert [each["report"]["residency"] for each in workers] == [asdict(LAYERS), asdict(RESIDENT)]


async def _model(http: httpx.AsyncClient) -> dict[str, object]:
    [model] = (await http.get("/v1/models")).raise_for_status().json()["data"]
    return dict(model)
