"""Fal's door: by its unmodified client, and what that client does not do."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from diffuserve.api.config import ApiConfig
from diffuserve.domain.tenant import Role
from diffuserve.jobs.store import JobStore
from support.certificates import certified
from support.hand_worker import HAND_SPEC, HandWorker
from support.waiting import HANG_SECONDS
from support.webhook_receiver import receiving
from support.webhook_sender import sending

_APPLICATION = "fal-ai/hand/text-to-image"
_PROGRAM = Path(__file__).parents[2] / "support" / "fal_program.py"
_QUEUE = f"/fal/queue/{_APPLICATION}"


@pytest.fixture
def app(make_app: Callable[[ApiConfig], FastAPI]) -> FastAPI:
    return make_app(
        ApiConfig(
            poll_seconds=0.2,
            doors="fal",
            default_model="hand",
            webhook_allowed_networks=("127.0.0.0/8",),
            webhook_allowed_ports=("1-65535",),
        )
    )


@pytest.fixture
async def hosts(app: FastAPI, tmp_path: Path) -> AsyncGenerator[dict[str, str]]:
    """Serve the application with TLS, which the client insists on; yield the client's environment."""
    certified("localhost", tmp_path)
    pem = str(tmp_path / "server.pem")
    config = uvicorn.Config(app, port=0, log_config=None, ssl_certfile=pem, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve())
    async with asyncio.timeout(HANG_SECONDS):
        while not server.started:
            await asyncio.sleep(0.01)
    host = f"localhost:{server.servers[0].sockets[0].getsockname()[1]}/fal"
    yield {"FAL_RUN_HOST": f"{host}/run", "FAL_QUEUE_RUN_HOST": f"{host}/queue", "SSL_CERT_FILE": pem}
    server.should_exit = True
    await serving


async def test_the_unmodified_client_does_everything(
    hosts: dict[str, str], http: httpx.AsyncClient, busy_worker: HandWorker, store: JobStore
) -> None:
    await HandWorker.register(http, [replace(HAND_SPEC, name="idle")], name="idle")
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, str(_PROGRAM), _APPLICATION),
        env=os.environ | hosts | {"FAL_KEY": "any"},
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(HANG_SECONDS):
        told, _ = await program.communicate()
    assert program.returncode == 0
    facts = json.loads(told)
    _check_output(facts["done"])
    assert [image["content_type"] for image in facts["again"]["images"]] == ["image/png"] * 2
    assert facts["run"]["images"][0]["url"].startswith("data:image/png;base64,iVBOR")
    assert [len(event["images"]) for event in facts["streamed"]][-1] == 1
    assert "request_id" in facts["streamed"][-1]
    assert facts["position"] == "Queued(position=0)"
    assert "succeeded" in facts["states"][-1]
    assert "start_timeout" in facts["late"] or "request_timeout" in facts["late"]
    _check_errors(facts["errors"])
    [job, *_] = [job for job in await store.jobs.list_jobs() if job.input["prompt"] == "a cat"]
    assert (job.worker_hint, job.max_attempts, job.band) == ("session 7", 1, "batch")
    assert job.forget_at == pytest.approx((job.finished_at or 0) + 60)
    assert job.metadata == {"fal": {"sync_mode": False, "ignored": ["acceleration", "guidance_scale"]}}


def _check_output(output: dict[str, Any]) -> None:
    [image] = output["images"]
    assert image["url"].startswith("https://localhost:")
    assert (image["width"], image["height"], output["seed"], output["prompt"]) == (1, 1, 7, "a cat")
    assert output["has_nsfw_concepts"] == [False]
    assert "inference" in output["timings"]


def _check_errors(errors: dict[str, Any]) -> None:
    assert (errors["canceled"]["status"], errors["canceled"]["type"]) == (410, "canceled")
    assert (errors["late"]["status"], errors["late"]["type"]) == (504, "request_timeout")
    [wrong] = errors["bad"]["detail"]
    assert (errors["bad"]["status"], wrong["loc"]) == (422, ["body", "num_images"])
    assert errors["unknown"]["status"] == 404
    assert "hand" in errors["unknown"]["detail"]
    assert errors["other"]["status"] == 404


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        ({"image_size": "square_hd"}, {"width": 128, "height": 128}),
        ({"image_size": {"width": 96, "height": 64}}, {"width": 96, "height": 64}),
        ({"aspect_ratio": "2:1"}, {"width": 80, "height": 32}),
        ({"num_inference_steps": 2, "guidance_scale": None}, {"num_inference_steps": 2}),
        ({"width": 64, "height": 96}, {"width": 64, "height": 96}),
    ],
)
async def test_arguments_become_parameters(
    http: httpx.AsyncClient, worker: HandWorker, arguments: dict[str, Any], asked: dict[str, Any]
) -> None:
    queued = (await http.post(_QUEUE, json={"prompt": "a cat", **arguments})).json()
    assert queued["response_url"] == f"http://api.test/fal/queue/fal-ai/hand/requests/{queued['request_id']}"
    job = (await http.get(f"/v1/jobs/{queued['request_id']}")).json()
    assert {name: job["input"][name] for name in asked} == asked


@pytest.mark.parametrize("arguments", [{"image_size": "square_hd"}, {"aspect_ratio": "1:1"}])
async def test_a_preset_becomes_a_size_that_the_model_has_learned(
    http: httpx.AsyncClient, arguments: dict[str, Any]
) -> None:
    learned = replace(HAND_SPEC, name="learned", learned_min_size=32, learned_max_size=64)
    worker = await HandWorker.register(http, [learned])
    await http.post("/fal/queue/diffuserve/learned", json={"prompt": "a cat", **arguments})
    [lease] = await worker.claim()
    assert (lease.input["width"], lease.input["height"]) == (64, 64)


async def test_a_result_tells_its_warnings(http: httpx.AsyncClient, busy_worker: HandWorker) -> None:
    busy_worker.warnings = ("hand does not know 'cat'",)
    result = await http.post(f"/fal/run/{_APPLICATION}", json={"prompt": "a cat"})
    assert result.json()["diffuserve_warnings"] == list(busy_worker.warnings)


@pytest.mark.parametrize(
    ("arguments", "headers", "place"),
    [
        ({"image_size": {"width": 7, "height": 64}}, {}, "image_size"),
        ({"image_size": "huge"}, {}, "image_size"),
        ({"strength": 0.5}, {}, "strength"),
        ({"loras": [{"path": "none"}]}, {}, "loras"),
        ({}, {"X-Fal-Object-Lifecycle-Preference": "soon"}, "X-Fal-Object-Lifecycle-Preference"),
        ({}, {"X-Fal-Request-Timeout": "-1"}, "x-fal-request-timeout"),
        ({}, {"X-Fal-Queue-Priority": "high"}, "x-fal-queue-priority"),
    ],
)
async def test_what_is_refused_is_named_as_fal_does(
    http: httpx.AsyncClient,
    worker: HandWorker,
    arguments: dict[str, Any],
    headers: dict[str, str],
    place: str,
) -> None:
    refused = await http.post(_QUEUE, json={"prompt": "a cat", **arguments}, headers=headers)
    assert refused.status_code == 422
    assert refused.json()["detail"][0]["loc"][1] == place
    assert refused.headers["x-fal-error-type"] in ("invalid_params", "model_not_capable")


async def test_headers_say_what_is_stored_and_that_nothing_else_draws(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    await HandWorker.register(http, [replace(HAND_SPEC, name="quick")], name="quick")
    body = {"prompt": "a cat", "fallback_model": "quick"}
    kept = await http.post(_QUEUE, json=body)
    headers = {"X-Fal-Store-IO": "0", "X-App-Fal-Disable-Fallback": "true"}
    gone = await http.post(_QUEUE, json=body, headers=headers)
    jobs = [(await http.get(f"/v1/jobs/{each.json()['request_id']}")).json() for each in (kept, gone)]
    assert [(job["store"], job["fallback_model"]) for job in jobs] == [(True, "quick"), (False, None)]


async def test_states_are_streamed_until_the_end(http: httpx.AsyncClient, worker: HandWorker) -> None:
    queued = (await http.post("/fal/queue/diffuserve/default", json={"prompt": "a cat"})).json()
    assert (await http.get(queued["response_url"])).status_code == 400
    assert (await http.get(queued["status_url"])).status_code == 202
    following = asyncio.create_task(http.get(f"{queued['status_url']}/stream", params={"logs": True}))
    await asyncio.sleep(0.1)
    [lease] = await worker.claim(1)
    await worker.complete(lease)
    lines = (await following).text.splitlines()
    states = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert states[-1]["status"] == "COMPLETED"
    assert states[-1]["logs"][-1]["message"] == "succeeded"
    assert (await http.put(queued["cancel_url"])).json() == {"status": "ALREADY_COMPLETED"}


async def test_a_webhook_receives_fals_message(
    app: FastAPI, http: httpx.AsyncClient, worker: HandWorker
) -> None:
    async with receiving() as receiver, sending(app):
        queue = httpx.URL(_QUEUE, params={"fal_webhook": receiver.url})
        ids = [(await http.post(queue, json={"prompt": "a cat"})).json()["request_id"] for _ in range(2)]
        drawn, failed = await worker.claim(2)
        await worker.complete(drawn)
        await worker.fail(failed)
        messages = [json.loads(request.body) for request in await receiver.wait_for(2)]
    told = {message["request_id"]: message for message in messages}
    assert [told[job_id]["status"] for job_id in ids] == ["OK", "ERROR"]
    assert told[ids[0]]["payload"]["images"][0]["url"].startswith("http://api.test/files/")
    assert told[ids[1]]["error"] == told[ids[1]]["payload"]["detail"] == "the engine says broken"
    forbidden = await http.post(f"{_QUEUE}?fal_webhook=http://10.0.0.1/", json={"prompt": "a cat"})
    assert forbidden.json()["detail"][0]["loc"] == ["body", "fal_webhook"]


async def test_one_tenant_never_sees_anothers_requests(http: httpx.AsyncClient, store: JobStore) -> None:
    keys = [(await store.keys.create(Role.TENANT, tenant_id=name))[1] for name in ("ada", "bob")]
    http.headers["authorization"] = f"Bearer {(await store.keys.create(Role.WORKER))[1]}"
    await HandWorker.register(http)
    sent = [f"Key {keys[0]}", f"Key id:{keys[0]}", f"Key {keys[1]}", "Key wrong", "Basic wrong"]
    ada, *others = ({"authorization": value} for value in sent)
    queued = (await http.post(_QUEUE, json={"prompt": "a cat"}, headers=ada)).json()
    url = queued["status_url"]
    statuses = [(await http.get(url, headers=headers)).status_code for headers in (ada, *others)]
    assert statuses == [202, 202, 404, 401, 401]
