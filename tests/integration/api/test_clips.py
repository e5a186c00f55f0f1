"""Clips over the native API, the flat one and batches; what cannot be a clip is refused in clear words."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx
import orjson
import pytest

from diffuserve.client.codec import decode
from diffuserve.domain.resources.job import JobResource
from diffuserve.domain.resources.model import ModelResource
from support.clips import CLIPS, MP4, complete_clip
from support.hand_worker import HAND_SPEC, PNG, HandWorker

JSONL = {"content-type": "application/jsonl"}
INCAPABLE = "model_not_capable"


@pytest.fixture
async def worker(http: httpx.AsyncClient) -> HandWorker:
    masked = replace(CLIPS, name="masked", has_mask=True, has_strength=True, has_first_frame=False)
    return await HandWorker.register(http, [HAND_SPEC, CLIPS, masked])


async def submit(http: httpx.AsyncClient, values: Mapping[str, Any] = {}, **body: Any) -> dict[str, Any]:
    body = {"kind": "video.generate", "model": "clips", "input": {"prompt": "a ball"} | dict(values)} | body
    response = await http.post("/v1/jobs", json=body)
    assert response.status_code == 202, response.text
    job: dict[str, Any] = response.json()
    return job


async def test_a_clip_goes_from_its_request_to_its_files(http: httpx.AsyncClient, worker: HandWorker) -> None:
    job = await submit(http, {"seconds": 0.5, "fps": 24, "seed": 7, "num_images": 2})
    asked = job["input"]
    assert (job["kind"], asked["num_frames"], asked["fps"]) == ("video.generate", 13, 24)
    assert "seconds" not in asked
    assert (job["progress"]["frames"], job["progress"]["num_frames"]) == (0, 26)
    [lease] = await worker.claim()
    assert (lease.kind, lease.output_format, lease.input) == ("video.generate", "mp4", asked)
    assert (await http.get(job["urls"]["result"])).json()["code"] == "not_finished"
    await complete_clip(worker, lease)

    response = await http.get(job["urls"]["self"])
    done = decode(JobResource, response.content)
    assert done.progress.frames == done.progress.num_frames == 26
    assert done.result is not None
    assert [video.seed for video in done.result.videos] == [7, 8]
    assert (done.result.outputs, done.result.images) == (done.result.videos, [])
    first, second = done.result.videos
    assert (first.content_type, first.num_frames, first.fps) == ("video/mp4", 13, 24)
    assert sorted({artifact.role for artifact in done.result.artifacts}) == ["poster", "sprites", "video"]
    for url in (first.url, second.url, job["urls"]["result"], f"{job['urls']['result']}?index=1"):
        fetched = await http.get(url)
        assert (fetched.content, fetched.headers["content-type"]) == (MP4, "video/mp4")
    assert (await http.get(f"{job['urls']['result']}?index=2")).json()["code"] == "artifact_not_found"


@pytest.mark.parametrize(
    ("values", "num_frames", "fps"),
    [
        ({}, 17, 16),
        ({"num_frames": 5}, 5, 16),
        ({"num_frames": 81, "fps": 30}, 81, 30),
        ({"seconds": 1}, 17, 16),
        ({"seconds": 1.1}, 17, 16),
        ({"seconds": 1.2}, 21, 16),
        ({"seconds": 0.001}, 5, 16),
        ({"seconds": 5.1}, 81, 16),
        ({"seconds": 2, "fps": 8}, 17, 8),
    ],
)
async def test_a_clip_has_the_length_asked_for_or_the_nearest_or_the_models(
    http: httpx.AsyncClient, worker: HandWorker, values: dict[str, Any], num_frames: int, fps: int
) -> None:
    asked = (await submit(http, values))["input"]
    assert (asked["num_frames"], asked["fps"]) == (num_frames, fps)


async def test_an_image_of_a_model_of_clips_is_a_single_frame(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    job = await submit(http, kind="image.generate")
    assert (job["input"]["num_frames"], job["progress"]["num_frames"]) == (1, 0)
    assert "fps" not in job["input"]
    assert (await worker.claim())[0].output_format == "png"


async def test_a_clip_without_a_models_name_is_for_the_one_that_makes_clips(http: httpx.AsyncClient) -> None:
    await HandWorker.register(http, [HAND_SPEC, CLIPS])
    assert (await submit(http, model=None))["model"] == "clips"


async def test_a_model_tells_whether_it_makes_clips_and_which(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    clips = decode(ModelResource, (await http.get("/v1/models/clips")).content)
    assert (clips.input_modalities, clips.output_modalities) == (("text", "image"), ("image", "video"))
    assert (clips.defaults["num_frames"], clips.defaults["fps"]) == (17, 16)
    assert (clips.limits["max_frames"], clips.limits["temporal_stride"]) == (81, 4)
    assert clips.limits["has_first_frame"] is True
    images = decode(ModelResource, (await http.get("/v1/models/hand")).content)
    assert (images.input_modalities, images.output_modalities) == (("text",), ("image",))


async def test_a_job_of_many_frames_costs_more_by_all_its_latent_frames(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    for num_frames in (5, 81):
        await submit(http, {"num_frames": num_frames})
    short, long = await worker.claim(num_jobs=2)
    assert long.step_tokens - short.step_tokens == (21 - 2) * 64 * 64 // 256
    assert long.cost_seconds > 2 * short.cost_seconds


async def test_the_same_key_gives_the_same_clip_and_another_length_is_refused(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    body = {"kind": "video.generate", "model": "clips", "input": {"prompt": "a ball", "seconds": 1}}
    headers = {"idempotency-key": "k"}
    first, again = [(await http.post("/v1/jobs", json=body, headers=headers)).json() for _ in range(2)]
    assert first["id"] == again["id"]
    other = body | {"input": {"prompt": "a ball", "seconds": 2}}
    refused = await http.post("/v1/jobs", json=other, headers=headers)
    assert refused.json()["code"] == "idempotency_mismatch"


async def test_a_script_gets_its_clip_and_its_poster(http: httpx.AsyncClient, worker: HandWorker) -> None:
    body = {"prompt": "a ball", "model": "clips", "seconds": 0.5, "output_format": "webm"}
    job_id = (await http.post("/generate", json=body)).json()["job_id"]
    [lease] = await worker.claim()
    assert (lease.kind, lease.input["num_frames"], lease.output_format) == ("video.generate", 9, "webm")
    await complete_clip(worker, lease)
    flat = (await http.get(f"/jobs/{job_id}")).json()
    assert (await http.get(flat["video_url"])).headers["content-type"] == "video/webm"
    assert (await http.get(flat["image_url"])).headers["content-type"] == "image/webp"


@pytest.mark.parametrize("values", [{}, {"num_frames": 1}, {"kind": "image.generate"}])
async def test_a_script_that_asks_for_no_length_gets_an_image(
    http: httpx.AsyncClient, worker: HandWorker, values: dict[str, Any]
) -> None:
    assert (await http.post("/generate", json={"prompt": "a ball", "model": "clips"} | values)).is_success
    assert (await worker.claim())[0].kind == "image.generate"


@pytest.mark.parametrize("form", ["json", "lines"])
async def test_a_batch_of_clips_in_both_forms(http: httpx.AsyncClient, worker: HandWorker, form: str) -> None:
    lengths: list[dict[str, Any]] = [{"seconds": 0.5}, {"num_frames": 5}, {}]
    items = [
        {"custom_id": str(number), "input": {"prompt": "a ball"} | length}
        for number, length in enumerate(lengths)
    ]
    options = {"kind": "video.generate", "model": "clips", "output_format": "gif"}
    response = await send_batch(http, form, options, items)
    assert response.status_code == 202, response.text
    leases = await worker.claim(num_jobs=3)
    assert [(lease.kind, lease.output_format) for lease in leases] == [("video.generate", "gif")] * 3
    assert [lease.input["num_frames"] for lease in leases] == [9, 5, 17]
    await complete_clip(worker, leases[0])
    lines = (await http.get(response.json()["urls"]["results"])).text.splitlines()
    roles = [artifact["role"] for artifact in json.loads(lines[0])["result"]["artifacts"]]
    assert roles == ["poster", "sprites", "video"]


async def send_batch(
    http: httpx.AsyncClient, form: str, options: Mapping[str, Any], items: list[dict[str, Any]]
) -> httpx.Response:
    if form == "json":
        return await http.post("/v1/batches", content=dumps(dict(options) | {"items": items}), headers=JSON)
    lines = b"\n".join(map(dumps, items))
    return await http.post("/v1/batches", content=lines, headers=JSONL, params=dict(options))


JSON = {"content-type": "application/json"}


def dumps(value: Any) -> bytes:
    """Return JSON that may hold NaN and infinity, which Python's own writes and reads, and orjson refuses."""
    return json.dumps(value).encode()


@dataclass(frozen=True)
class Bad:
    """A request for a clip that is refused: what it asks for, and what the refusal says of which field.

    An `option` belongs to the job, and to a batch as a whole; every other field is of the input.
    """

    field: str
    remedy: str
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    code: str = "invalid_params"

    @property
    def body(self) -> dict[str, Any]:
        return {"kind": "video.generate", "model": "clips"} | dict(self.options)


IMAGE: dict[str, Any] = {"kind": "image.generate"}
BAD = {
    "no frame": Bad("num_frames", "must be at least 1", {"num_frames": 0}),
    "negative": Bad("num_frames", "must be at least 1", {"num_frames": -5}),
    "one frame": Bad("num_frames", "is an image; give at least 5", {"num_frames": 1}),
    "two frames": Bad("num_frames", "plus 1; try 1 or 5", {"num_frames": 2}, code=INCAPABLE),
    "between": Bad("num_frames", "try 17 or 21", {"num_frames": 18}, code=INCAPABLE),
    "too many": Bad("num_frames", "at most 81 frames", {"num_frames": 85}, code=INCAPABLE),
    "a billion": Bad("num_frames", "at most 81 frames", {"num_frames": 10**9}, code=INCAPABLE),
    "half a frame": Bad("num_frames", "must be a whole number", {"num_frames": 17.5}),
    "words": Bad("num_frames", "must be a whole number", {"num_frames": "many"}),
    "both lengths": Bad("seconds", "give one of them", {"seconds": 1, "num_frames": 17}),
    "no time": Bad("seconds", "must lie in 0…3600, without 0", {"seconds": 0}),
    "back in time": Bad("seconds", "must lie in 0…3600, without 0", {"seconds": -1}),
    "too long": Bad("seconds", "at most 81 frames, 5.06 at 16 a second", {"seconds": 6}),
    "far too long": Bad("seconds", "must lie in 0…3600", {"seconds": 1e9}),
    "endless": Bad("seconds", "must be a finite number", {"seconds": float("inf")}),
    "no number": Bad("seconds", "must be a finite number", {"seconds": float("nan")}),
    "seconds in words": Bad("seconds", "must be a number", {"seconds": "2s"}),
    "fps 0": Bad("fps", "must be in 1…120", {"fps": 0}),
    "fps 121": Bad("fps", "must be in 1…120", {"fps": 121}),
    "fps 23.976": Bad("fps", "must be a whole number", {"fps": 23.976}),
    "mask": Bad("mask", "a clip takes its first frame as image", {"image": "file-x", "mask": "file-y"}),
    "mask of a filler": Bad(
        "mask", "a clip takes", {"image": "file-x", "mask": "file-y"}, {"model": "masked"}
    ),
    "strength": Bad("strength", "leave strength out", {"image": "file-x", "strength": 0.5}, code=INCAPABLE),
    "two first frames": Bad(
        "image", "at most 1; leave the others out", {"image": ["file-x", "file-y"]}, code=INCAPABLE
    ),
    "size": Bad("width", "try 96 or 112", {"width": 100}),
    "large": Bad("height", "pixels a side", {"height": 512}),
    "png of a clip": Bad("output_format", "give one of mp4, webm, gif, webp", {}, {"output_format": "png"}),
    "mp4 of an image": Bad(
        "output_format", "give one of png, webp, jpeg", {}, IMAGE | {"output_format": "mp4"}
    ),
    "avi": Bad(
        "output_format", "must be one of png, webp, jpeg, mp4, webm, gif", {}, {"output_format": "avi"}
    ),
    "webm of 32 pixels": Bad("output_format", "take mp4", {"width": 32}, {"output_format": "webm"}),
    "gif at 120": Bad("output_format", "take mp4", {"fps": 120}, {"output_format": "gif"}),
    "kind": Bad(
        "kind", "must be 'image.generate', 'video.generate' or 'audio.generate'", {}, {"kind": "video.edit"}
    ),
    "a model of images": Bad(
        "kind",
        "hand generates single images; clips are made by clips, masked",
        {},
        {"model": "hand"},
        code=INCAPABLE,
    ),
    "several models": Bad("model", "choose one of: clips, masked", {}, {"model": None}),
    "frames of an image": Bad("num_frames", '"video.generate" for a clip', {"num_frames": 17}, IMAGE),
    "seconds of an image": Bad("seconds", "is for clips", {"seconds": 1}, IMAGE),
    "fps of an image": Bad("fps", "is for clips", {"fps": 16}, IMAGE),
    "another name": Bad("frames", "did you mean num_frames?", {"frames": 17}),
    "another length": Bad("duration", "did you mean seconds?", {"duration": 2}),
}
ROUTES = ("/v1/jobs", "/generate", "json", "lines")
OPTIONS = ("kind", "model", "output_format")


@pytest.mark.parametrize("route", ROUTES)
async def test_bad_clips_are_refused_with_field_and_remedy_by_every_route(
    http: httpx.AsyncClient, worker: HandWorker, route: str
) -> None:
    for name, bad in BAD.items():
        response = await _send(http, route, bad)
        refusal = response.json()
        assert response.status_code == 422, (name, refusal)
        [error] = refusal["errors"]
        assert (error["field"], bad.remedy in error["message"]) == (_field(route, bad, error), True), name
        assert len(refusal["detail"]) < 500
        if route in ("/v1/jobs", "/generate"):
            assert refusal["code"] == bad.code, name
    assert (await http.get("/v1/jobs")).json()["data"] == []
    assert (await http.get("/v1/files")).json()["data"] == []


async def _send(http: httpx.AsyncClient, route: str, bad: Bad) -> httpx.Response:
    values = {"prompt": "a ball"} | dict(bad.values)
    if route == "/v1/jobs":
        return await http.post(route, content=dumps(bad.body | {"input": values}), headers=JSON)
    if route == "/generate":
        return await http.post(route, content=dumps(bad.body | values), headers=JSON)
    options = {option: value for option, value in bad.body.items() if value is not None}
    return await send_batch(http, route, options, [{"custom_id": "a", "input": values}])


def _field(route: str, bad: Bad, error: Mapping[str, str]) -> str:
    """Return what the route calls the field; an option of a batch may be at fault in an item alone."""
    if route == "/generate":
        return bad.field
    if bad.field in OPTIONS:
        suits_no_item = (bad.field, f"{'items' if route == 'json' else 'lines'}.0.{bad.field}")
        return next((place for place in suits_no_item if place == error["field"]), bad.field)
    inside = f"input.{bad.field}"
    return inside if route == "/v1/jobs" else f"{'items' if route == 'json' else 'lines'}.0.{inside}"


async def test_a_first_frame_is_judged_before_the_job_and_sizes_the_clip(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    unknown = await http.post(
        "/v1/jobs",
        json={"kind": "video.generate", "model": "clips", "input": {"prompt": "a", "image": "file-0"}},
    )
    assert (unknown.status_code, unknown.json()["errors"][0]["field"]) == (422, "input.image")
    text = {"prompt": "a", "image": "data:text/html;base64,aGk="}
    refused = await http.post("/v1/jobs", json={"kind": "video.generate", "model": "clips", "input": text})
    assert refused.json()["errors"][0]["field"] == "input.image"
    assert orjson.loads(refused.content)["status"] == 422
    assert PNG not in refused.content
