"""Sounds over the API: refused where nothing judges them, their lyrics judged, and findings audited."""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from diffuserve.api.app import create_app
from diffuserve.api.config import ApiConfig
from diffuserve.api.submit.prompt_processor import PromptProcessor
from diffuserve.client.codec import decode
from diffuserve.domain.resources.job import JobResource
from diffuserve.domain.safety import PASSES, Action, FilterInfo, Finding, SafetyStage, Verdict
from diffuserve.domain.workers.worker import Lease
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.store import JobStore
from diffuserve.storage.local import LocalArtifactStore
from diffuserve.testing.fake_pipeline import FAKE_SOUND_SPEC
from support.hand_worker import HAND_SPEC, HandWorker

WAV = b"RIFF, and samples"
SOUND = {"kind": "audio.generate", "model": "fake-sound"}


class WordFilter:
    """Blocks texts with `forbidden`, and flags those with `odd`."""

    info = FilterInfo("words", "1")

    async def check(self, prompt: str, tenant_id: str = "") -> Verdict:
        actions = {"forbidden": Action.BLOCK, "odd": Action.FLAG}
        found = [Finding("words", action, "words") for word, action in actions.items() if word in prompt]
        return Verdict(tuple(found)) if found else PASSES

    async def check_all(self, prompts: Sequence[str], tenant_id: str = "") -> list[Verdict]:
        return [await self.check(prompt) for prompt in prompts]

    async def close(self) -> None: ...


@pytest.fixture
def app(store: JobStore, artifacts: LocalArtifactStore, bus: MemoryEventBus) -> FastAPI:
    return create_app(
        store, artifacts, bus, ApiConfig(poll_seconds=0.2), prompts=PromptProcessor(WordFilter())
    )


@pytest.fixture
async def worker(http: httpx.AsyncClient) -> HandWorker:
    return await HandWorker.register(http, [HAND_SPEC, FAKE_SOUND_SPEC])


@pytest.fixture
async def strict(make_app: Callable[[ApiConfig], FastAPI]) -> AsyncGenerator[httpx.AsyncClient]:
    """Call a server with an image filter, beside which nothing judges sounds."""
    transport = httpx.ASGITransport(make_app(ApiConfig(lets_sounds_out=False)))
    async with httpx.AsyncClient(transport=transport, base_url="http://api.test") as http:
        yield http


def rain(**values: Any) -> dict[str, Any]:
    return SOUND | {"input": {"prompt": "rain", "seed": 7, **values}}


async def complete(worker: HandWorker, lease: Lease) -> None:
    artifacts = []
    for index in range(lease.input["num_images"]):
        stored = (await worker.upload(lease, f"{index}.wav", WAV)).raise_for_status().json()
        sound = {"role": "audio", "content_type": "audio/wav", "index": index, "seed": 7 + index}
        artifacts.append(stored | sound | {"seconds": 0.5, "channels": 2, "sample_rate": 16_000})
    (await worker.finish(lease, artifacts)).raise_for_status()


async def test_a_sound_that_nothing_would_judge_is_refused_at_the_door(
    worker: HandWorker, strict: httpx.AsyncClient
) -> None:
    batch = SOUND | {"items": [{"custom_id": "1", "input": {"prompt": "rain"}}]}
    for path, body in (("/v1/jobs", rain()), ("/v1/batches", batch)):
        refused = await strict.post(path, json=body)
        assert refused.status_code == 422
        assert "no sound leaves here" in refused.json()["detail"]
        assert "--allow-unjudged-audio" in refused.json()["detail"]
    assert (await strict.post("/v1/jobs", json={"input": {"prompt": "a star"}, "model": "hand"})).is_success
    assert (await worker.claim(num_jobs=8))[0].kind == "image.generate"


async def test_a_sound_goes_from_its_request_to_its_files(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    job = (await http.post("/v1/jobs", json=rain(num_images=2))).raise_for_status().json()
    assert (job["input"]["seconds"], "width" in job["input"]) == (0.5, False)
    assert (job["progress"]["num_frames"], job["cost_seconds"] > 0) == (0, True)
    [lease] = await worker.claim()
    assert (lease.kind, lease.output_format) == ("audio.generate", "wav")
    await complete(worker, lease)
    done = decode(JobResource, (await http.get(job["urls"]["self"])).content)
    assert done.result is not None
    assert [sound.seed for sound in done.result.sounds] == [7, 8]
    assert done.result.outputs == done.result.sounds
    assert (done.result.sounds[0].seconds, done.result.sounds[0].width) == (0.5, None)
    for url in (done.result.sounds[1].url, f"{job['urls']['result']}?index=1"):
        fetched = await http.get(url)
        assert (fetched.content, fetched.headers["content-type"]) == (WAV, "audio/wav")
    listed = (await http.get("/v1/jobs", params={"kind": "audio.generate"})).json()["data"]
    assert [each["id"] for each in listed] == [job["id"]]


async def test_longer_sounds_cost_more(http: httpx.AsyncClient, worker: HandWorker) -> None:
    short, long = [
        (await http.post("/v1/jobs", json=rain(seconds=seconds))).json()["cost_seconds"]
        for seconds in (1.0, 8.0)
    ]
    assert long > short


async def test_a_job_without_a_models_name_is_for_one_that_can_do_it(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    for kind, model in (("audio.generate", "fake-sound"), ("image.generate", "hand")):
        job = await http.post("/v1/jobs", json={"kind": kind, "input": {"prompt": "rain"}})
        assert job.json()["model"] == model


async def test_lyrics_keep_their_lines_and_are_judged(
    http: httpx.AsyncClient, worker: HandWorker, store: JobStore
) -> None:
    kept = (await http.post("/v1/jobs", json=rain(lyrics=" la  la \nodd\u200b one"))).json()
    assert kept["input"]["lyrics"] == "la la\nodd one"
    assert kept["prompt"]["verdict"]["action"] == "flag"
    refused = await http.post("/v1/jobs", json=rain(lyrics="a\nforbidden line"))
    assert refused.json()["code"] == "prompt_blocked"
    entries = await store.audit.newest()
    assert [(entry.stage, entry.action) for entry in entries] == [
        (SafetyStage.PROMPT, Action.BLOCK),
        (SafetyStage.PROMPT, Action.FLAG),
    ]


async def test_the_lyrics_of_a_batch_are_judged_with_its_prompts(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    lyrics = ("la", "odd", "forbidden")
    items = [{"custom_id": text, "input": {"prompt": "rain", "lyrics": text}} for text in lyrics]
    refused = await http.post("/v1/batches", json=SOUND | {"items": items})
    assert "items.2.input.lyrics" in refused.text
    accepted = (await http.post("/v1/batches", json=SOUND | {"items": items[:2]})).raise_for_status().json()
    leases = await worker.claim(num_jobs=8)
    assert sorted(lease.input["lyrics"] for lease in leases) == ["la", "odd"]
    for lease in leases:
        await complete(worker, lease)
    ended = (await http.get(f"/v1/batches/{accepted['id']}")).json()
    assert ended["status"] == "completed"


async def test_what_a_judge_finds_in_a_sound_is_audited(
    http: httpx.AsyncClient, worker: HandWorker, store: JobStore
) -> None:
    job = (await http.post("/v1/jobs", json=rain())).json()
    [lease] = await worker.claim()
    finding = {"category": "speech", "action": "block", "source": "ears", "score": 0.9}
    record = {
        "filter": {"name": "ears", "version": "1", "thresholds": {}},
        "verdicts": [{"action": "block", "findings": [finding]}],
    }
    error = {"code": "output_blocked", "message": "a sound is blocked", "safety": {"sound": record}}
    (await worker._post(lease, "fail", {"error": error})).raise_for_status()
    [entry] = await store.audit.newest()
    assert (entry.stage, entry.category, entry.job_id) == (SafetyStage.SOUND, "speech", job["id"])
