"""Clips by `diffuserve submit` and `diffuserve batches`, against a real server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diffuserve.domain.jobs.job import VIDEO_GENERATE
from diffuserve.settings import Settings
from support.clips import CLIPS, MP4
from support.command import Invoke
from support.server_thread import ServerThread


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """Serve a model of clips."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("server"), port=0, prompt_filter="none")
    with ServerThread(settings, spec=CLIPS) as server:
        yield server


def test_submit_saves_a_clip_in_the_format_of_the_file_name(invoke: Invoke) -> None:
    done = invoke("submit", "a ball", "--frames", "17", "--fps", "8", "--seed", "7", "-o", "ball.webm")
    assert (done.code, done.out) == (0, "ball.webm")
    assert Path("ball.webm").read_bytes() == MP4
    job = _newest(invoke)
    assert job["kind"] == VIDEO_GENERATE
    assert "video/webm" in json.dumps(job["result"])
    assert (job["input"]["num_frames"], job["input"]["fps"]) == (17, 8)
    assert not any(path.name.endswith(".webp") for path in Path().iterdir()), "the clip alone is saved"


def test_a_finished_clip_is_shown_with_its_poster_and_its_sprites(invoke: Invoke) -> None:
    done = invoke("submit", "a ball", "--seconds", "2", "-o", "ball.mp4", "--json")
    assert done.code == 0
    job = json.loads(done.out)
    assert (job["status"], job["input"]["num_frames"]) == ("succeeded", 33)
    assert {artifact["role"] for artifact in job["result"]["artifacts"]} == {"video", "poster", "sprites"}


def test_waiting_for_a_clip_shows_its_progress(invoke: Invoke) -> None:
    done = invoke("submit", "a rolling ball", "--frames", "17", "--wait")
    assert done.code == 0
    assert "a rolling ball" in done.err
    assert "succeeded" in done.err


def test_a_clip_that_fails_writes_no_file(invoke: Invoke) -> None:
    done = invoke("submit", "fail", "--frames", "17", "-o", "never.mp4")
    assert (done.code, "the engine says broken" in done.err) == (1, True)
    assert list(Path().iterdir()) == []


def test_a_length_between_two_is_refused_with_both(invoke: Invoke) -> None:
    done = invoke("submit", "a ball", "--frames", "16", "-o", "ball.mp4")
    assert done.code == 2
    assert "13" in done.err
    assert "17" in done.err


def test_a_batch_of_clips_ends_with_their_files(invoke: Invoke) -> None:
    items = [
        {"custom_id": str(number), "input": {"prompt": "a ball", "num_frames": number}} for number in (5, 9)
    ]
    body = {"kind": VIDEO_GENERATE, "output_format": "gif", "items": items}
    Path("clips.json").write_text(json.dumps(body), encoding="utf-8")
    done = invoke("batches", "submit", "clips.json", "--wait")
    assert done.code == 0, done.err
    batch_id, _, described = done.out.partition(" ")
    assert described == "completed: 2 of 2 ended (2 succeeded)"
    results = [json.loads(line) for line in invoke("batches", "results", batch_id).out.splitlines()]
    assert [result["custom_id"] for result in results] == ["5", "9"]
    assert all(_roles(result) == {"video", "poster", "sprites"} for result in results)
    assert all("image/gif" in json.dumps(result) for result in results)


def _roles(result: object) -> set[str]:
    """Return the roles of all files that a result names, wherever it does."""
    if isinstance(result, dict):
        own = {result["role"]} if "role" in result and "content_type" in result else set()
        return own.union(*map(_roles, result.values()))
    return set[str]().union(*map(_roles, result)) if isinstance(result, list) else set()


def _newest(invoke: Invoke) -> dict[str, Any]:
    listed = json.loads(invoke("jobs", "list", "--limit", "1", "--json").out)
    job: dict[str, Any] = listed["data"][0] if isinstance(listed, dict) else listed[0]
    return job
