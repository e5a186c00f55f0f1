"""The flat API for scripts."""

import asyncio
import json
import logging
from contextlib import closing
from typing import Any

import httpx
import pytest
import websockets
from fastapi import FastAPI

from diffuserve.api.server.http_server import serving as own_serving
from diffuserve.cli.servers.listening import address_of, listen
from support.hand_worker import PNG, HandWorker
from support.waiting import HANG_SECONDS


async def generate(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await http.post("/generate", json={"prompt": "a cat"} | body)
    assert response.status_code == 202, response.text
    document: dict[str, Any] = response.json()
    return document


async def test_a_script_gets_its_image(http: httpx.AsyncClient, worker: HandWorker) -> None:
    accepted = await generate(http, steps=3, width=128, height=64, seed=5)
    job_id = accepted["job_id"]
    assert accepted["status"] == "pending"
    assert accepted["queue_position"] == 1
    assert accepted["estimated_time"] > 0
    pending = (await http.get(f"/jobs/{job_id}")).json()
    assert pending == {
        "job_id": job_id,
        "status": "pending",
        "progress": 0.0,
        "image_url": None,
        "video_url": None,
        "audio_url": None,
        "error": None,
    }
    [lease] = await worker.claim()
    assert (lease.input["num_inference_steps"], lease.input["width"], lease.input["seed"]) == (3, 128, 5)
    await worker.report(lease, 1, 4)
    processing = (await http.get(f"/jobs/{job_id}")).json()
    assert (processing["status"], processing["progress"]) == ("processing", 0.25)
    await worker.complete(lease)
    completed = (await http.get(f"/jobs/{job_id}")).json()
    assert (completed["status"], completed["progress"]) == ("completed", 1.0)
    assert (await http.get(completed["image_url"])).content == PNG


async def test_a_failed_job_has_its_error_message(http: httpx.AsyncClient, worker: HandWorker) -> None:
    job_id = (await generate(http))["job_id"]
    await worker.fail((await worker.claim())[0])
    failed = (await http.get(f"/jobs/{job_id}")).json()
    assert (failed["status"], failed["error"]) == ("failed", "the engine says broken")


async def test_delete_cancels_a_pending_and_a_processing_job(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    first, second = (await generate(http))["job_id"], (await generate(http))["job_id"]
    [lease] = await worker.claim()
    assert (await http.delete(f"/jobs/{second}")).json()["status"] == "cancelled"
    assert (await http.delete(f"/jobs/{first}")).json()["status"] == "processing"
    assert (await worker.heartbeat(lease))["cancel"] == [first]
    await worker.release(lease)
    assert (await http.get(f"/jobs/{first}")).json()["status"] == "cancelled"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x" * 2001}, "prompt"),
        ({"prompt": "a", "steps": 0}, "steps"),
        ({"prompt": "a", "steps": 101}, "steps"),
        ({"prompt": "a", "width": 512}, "width"),
        ({"prompt": "a", "height": 8}, "height"),
        ({"prompt": "a", "negative_prompt": "b"}, "negative_prompt"),
        ({"prompt": "a", "priority": "batch"}, "priority"),
    ],
)
async def test_invalid_input_is_rejected_with_its_flat_name(
    http: httpx.AsyncClient, worker: HandWorker, body: dict[str, Any], field: str
) -> None:
    response = await http.post("/generate", json=body)
    assert response.status_code == 422
    assert [error["field"] for error in response.json()["errors"]] == [field]


@pytest.mark.parametrize("prompt", ["x", "x" * 2000])
async def test_prompts_at_the_limits_are_accepted(
    http: httpx.AsyncClient, worker: HandWorker, prompt: str
) -> None:
    await generate(http, prompt=prompt)


async def test_a_websocket_sends_each_change_and_closes_after_the_last(
    http: httpx.AsyncClient, worker: HandWorker, server: str
) -> None:
    job_id = (await generate(http))["job_id"]
    async with websockets.connect(server.replace("http", "ws") + f"/ws/jobs/{job_id}") as socket:
        sent = [json.loads(await socket.recv())]
        [lease] = await worker.claim()
        sent.append(json.loads(await socket.recv()))
        await worker.report(lease, 2, 4)
        sent.append(json.loads(await socket.recv()))
        await worker.complete(lease)
        async with asyncio.timeout(HANG_SECONDS):
            sent += [json.loads(message) async for message in socket]
    assert [(job["status"], job["progress"]) for job in sent] == [
        ("pending", 0.0),
        ("processing", 0.0),
        ("processing", 0.5),
        ("completed", 1.0),
    ]
    assert socket.close_code == 1000
    assert sent[-1]["image_url"].startswith(f"{server}/files/")
    assert (await http.get(sent[-1]["image_url"].replace(server, ""))).content == PNG


@pytest.mark.parametrize("path", ["/ws/jobs/nix", "/v1/jobs/nix/ws"])
async def test_a_websocket_for_an_unknown_job_is_refused_without_a_word_in_the_log(
    app: FastAPI, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(listen("127.0.0.1", 0)) as listener:
        async with own_serving(app, listener):
            with pytest.raises(websockets.InvalidStatus) as refused:
                await websockets.connect(address_of(listener).replace("http", "ws") + path)
    problem = json.loads(refused.value.response.body or b"")
    assert (refused.value.response.status_code, problem["code"]) == (404, "job_not_found")
    assert "nix" in problem["detail"]
    told = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == []
