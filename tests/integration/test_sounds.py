"""Sounds from end to end: HTTP, a control plane, an agent and an engine with a model that makes them."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from diffuserve.agent.agent import WorkerAgent
from diffuserve.media.sound_writer import read_sound
from diffuserve.protocol.config import ImageOptions
from support.fake_family.install import install_fake_family, write_fake_model
from support.plane import Plane
from support.waiting import HANG_SECONDS, eventually

Start = Callable[..., WorkerAgent]
UNJUDGED = ImageOptions(allow_unjudged_audio=True)


@pytest.fixture
def family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(install_fake_family(tmp_path / "site")))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


async def is_ready(plane: Plane) -> bool:
    async with httpx.AsyncClient(base_url=plane.url) as http:
        return (await http.get("/readyz")).is_success


async def ended(http: httpx.AsyncClient, job_id: str) -> dict[str, Any]:
    job: dict[str, Any] = {}

    async def is_final() -> bool:
        nonlocal job
        job = (await http.get(f"/v1/jobs/{job_id}")).json()
        return job["status"] in ("succeeded", "failed")

    await eventually(is_final)
    return job


def client(plane: Plane) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=plane.url, timeout=HANG_SECONDS)


@pytest.mark.usefixtures("family")
async def test_a_job_of_a_sound_gives_its_file_and_a_picture_or_is_refused_with_the_remedy(
    plane: Plane, start: Start, tmp_path: Path
) -> None:
    model = write_fake_model(tmp_path / "rain", makes="sounds")
    start(engine_command=(), model=str(model), device="cpu", images=UNJUDGED)
    await eventually(lambda: is_ready(plane))
    async with client(plane) as http:
        [served] = (await http.get("/v1/models")).json()["data"]
        assert served["output_modalities"] == ["audio"]
        assert (served["defaults"]["seconds"], served["defaults"]["width"]) == (0.5, None)
        assert (served["limits"]["max_seconds"], served["limits"]["sample_rate"]) == (10.0, 16_000)
        assert {"seconds", "lyrics"} <= {field["name"] for field in served["fields"]}
        assert not {"width", "num_frames", "fps"} & {field["name"] for field in served["fields"]}

        wanted = {"prompt": "rain on a tin roof", "seconds": 2.0, "lyrics": "drip\ndrop", "num_images": 2}
        body = {"kind": "audio.generate", "output_format": "flac", "input": wanted}
        job = await ended(http, (await http.post("/v1/jobs", json=body)).raise_for_status().json()["id"])
        assert job["status"] == "succeeded", job["error"]
        assert (job["input"]["seconds"], job["input"]["lyrics"]) == (2.0, "drip\ndrop")
        first, second, picture = job["result"]["artifacts"]
        assert (first["role"], first["content_type"], second["index"]) == ("audio", "audio/flac", 1)
        assert (first["seconds"], first["channels"], first["sample_rate"]) == (2.0, 2, 16_000)
        assert picture["role"] == "thumbnail"
        fetched = await http.get(f"/v1/jobs/{job['id']}/result", params={"index": 1})
        assert fetched.headers["content-type"] == "audio/flac"
        (tmp_path / "rain.flac").write_bytes(fetched.content)
        assert read_sound(tmp_path / "rain.flac").seconds == 2.0

        flat = {"prompt": "rain", "output_format": "wav", "seconds": 0.25}
        flat_id = (await http.post("/generate", json=flat)).raise_for_status().json()["job_id"]
        await ended(http, flat_id)
        sound = (await http.get(f"/jobs/{flat_id}")).json()
        assert (sound["image_url"], sound["video_url"]) == (None, None)
        assert (await http.get(sound["audio_url"])).headers["content-type"] == "audio/wav"
        await check_refusals(http)


async def check_refusals(http: httpx.AsyncClient) -> None:
    """Assert that what no sound can be is refused with the remedy."""
    sound = {"kind": "audio.generate", "input": {"prompt": "rain"}}
    refused: list[tuple[dict[str, Any], str]] = [
        ({"kind": "image.generate"}, 'rain makes sounds; ask for the kind "audio.generate"'),
        ({"kind": "video.generate"}, "rain makes sounds"),
        ({"input": {"prompt": "rain", "seconds": 11.0}}, "makes sounds of at most 10 s"),
        ({"input": {"prompt": "rain", "width": 64}}, "have no width"),
        ({"input": {"prompt": "rain", "num_frames": 5}}, "is for clips"),
        ({"input": {"prompt": "rain", "second": 5}}, "seconds"),
        ({"output_format": "mp4"}, "give one of wav, flac"),
        ({"num_previews": 1}, "a sound has none"),
        ({"live": True}, "is for clips"),
    ]
    for change, told in refused:
        answer = await http.post("/v1/jobs", json=sound | change)
        assert answer.status_code in (400, 422), (change, answer.text)
        assert told in answer.json()["detail"], change


@pytest.mark.usefixtures("family")
async def test_a_worker_that_lets_no_sound_out_fails_its_jobs_before_any_work(
    plane: Plane, start: Start, tmp_path: Path
) -> None:
    model = write_fake_model(tmp_path / "rain", makes="sounds")
    start(engine_command=(), model=str(model), device="cpu", images=ImageOptions())
    await eventually(lambda: is_ready(plane))
    body = {"kind": "audio.generate", "input": {"prompt": "rain"}}
    async with client(plane) as http:
        job = await ended(http, (await http.post("/v1/jobs", json=body)).raise_for_status().json()["id"])
    assert job["error"]["code"] == "output_blocked"
    assert "--allow-unjudged-audio" in job["error"]["message"]
    assert job["result"] is None


@pytest.mark.usefixtures("family")
async def test_a_clip_carries_its_sound(plane: Plane, start: Start, tmp_path: Path) -> None:
    model = write_fake_model(tmp_path / "storm", makes="clips with sound")
    start(engine_command=(), model=str(model), device="cpu", images=UNJUDGED)
    await eventually(lambda: is_ready(plane))
    clip = {"prompt": "a storm", "width": 64, "height": 64, "num_frames": 17, "fps": 8}
    async with client(plane) as http:
        [served] = (await http.get("/v1/models")).json()["data"]
        assert served["output_modalities"] == ["image", "video", "audio"]
        body = {"kind": "video.generate", "input": clip}
        job = await ended(http, (await http.post("/v1/jobs", json=body)).raise_for_status().json()["id"])
        video = next(file for file in job["result"]["artifacts"] if file["role"] == "video")
        assert (video["channels"], video["sample_rate"]) == (2, 16_000)
        (tmp_path / "storm.mp4").write_bytes((await http.get(video["url"])).content)
    assert read_sound(tmp_path / "storm.mp4").seconds == pytest.approx(17 / 8, abs=0.1)
