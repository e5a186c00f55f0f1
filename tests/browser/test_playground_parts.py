"""The playground's code to copy runs as it is, and its parts without a page decide as they should."""

import os
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from diffuserve.api.submit.file_formats import IMAGE_FORMATS
from diffuserve.domain.jobs.job import AUDIO_GENERATE, IMAGE_GENERATE, VIDEO_GENERATE
from diffuserve.domain.tenant import Role
from diffuserve.domain.workers.worker import Lease
from diffuserve.media.sound_file import SOUND_FORMATS
from diffuserve.media.video_file import VIDEO_FORMATS
from diffuserve.settings import Settings
from support.clips import complete_clip
from support.hand_page import Hand, call, generate, newest
from support.hand_worker import HandWorker
from support.image_files import png
from support.server_thread import ServerThread
from support.waiting import HANG_SECONDS, block_until


@pytest.mark.parametrize("name", ["curl", "Python", "OpenAI client"])
def test_snippets_run_as_they_are(
    open_hand: Callable[..., Page], hand: Hand, tmp_path: Path, name: str
) -> None:
    page = open_hand(
        prompt='it\'s a "star" \\ ☆', seed=7, guidance_scale=3, width=64, height=96, output_format="webp"
    )
    generate(page)
    lease = hand.complete()
    newest(page).get_by_role("button", name="Code").click()
    newest(page).get_by_role("button", name=name, exact=True).click()
    newest(page).get_by_role("button", name="Copy").click()
    text = page.evaluate("navigator.clipboard.readText()")
    again = run_snippet(hand, name, text, tmp_path)
    assert {**again.input} == {**lease.input}
    assert (again.output_format, [path.suffix for path in tmp_path.iterdir()]) == ("webp", [".webp"])


def test_the_form_offers_the_tiers_of_a_model_alone(open_hand: Callable[..., Page], hand: Hand) -> None:
    page = open_hand(prompt="a star", num_inference_steps=4)

    def limited(route: Route) -> None:
        answer = route.fetch()
        models = [
            model | {"tiers": {"steps": [4, 8], "sizes": ["64x64", "128x64"], "policy": "refuse"}}
            for model in answer.json()["data"]
        ]
        route.fulfill(response=answer, json={"object": "list", "data": models})

    page.route("**/v1/models", limited)
    page.reload()
    sizes = page.get_by_role("group", name="Size")
    expect(sizes.get_by_role("radio")).to_have_count(2)
    sizes.get_by_role("radio", name="128×64").check()
    steps = page.get_by_role("group", name="Steps")
    expect(steps.get_by_role("radio")).to_have_count(2)
    steps.get_by_role("radio", name="8").check()
    generate(page)
    asked = hand.claim().input
    assert (asked["num_inference_steps"], asked["width"], asked["height"]) == (8, 128, 64)


def test_the_form_has_what_fields_the_server_tells_of(open_hand: Callable[..., Page], hand: Hand) -> None:
    page = open_hand(prompt="a star")
    named = {"kind": "number", "default": 0, "min": 0, "max": 1, "step": 0.1, "hint": None, "choices": []}
    unheard = [
        {**named, "name": name, "label": name.title(), "topic": topic, "samplers": samplers}
        for name, topic, samplers in (
            ("novelty", None, []),
            ("gravity", None, ["ddim"]),
            ("tempo", "clip", []),
        )
    ]

    def with_more(route: Route) -> None:
        answer = route.fetch()
        models = [model | {"fields": model["fields"] + unheard} for model in answer.json()["data"]]
        route.fulfill(response=answer, json={"object": "list", "data": models})

    page.route("**/v1/models", with_more)
    page.goto(f"{page.url}&novelty=0.5")
    expect(page.locator("#setting-novelty")).to_have_value("0.5")
    expect(page.get_by_label("Tempo")).to_have_count(0)
    expect(page.get_by_label("Gravity")).to_have_count(0)
    page.get_by_label("Sampler").select_option("ddim")
    page.get_by_label("Gravity").fill("0.25")
    page.get_by_role("button", name="Generate").click()
    for name in ("novelty", "gravity"):
        expect(page.locator(f"#setting-{name}-error")).to_contain_text("Is not a field of this request")


def test_snippets_of_a_server_with_keys_take_the_key_from_the_environment(
    open_hand: Callable[..., Page], tmp_path: Path
) -> None:
    page = open_hand()
    settings = Settings.with_options(data_dir=tmp_path / "data", port=0, lease_seconds=3600)
    with ServerThread(settings, has_worker=False) as server:
        _, worker_key = server.call(server.store.keys.create(Role.WORKER))
        _, tenant_key = server.call(server.store.keys.create(Role.TENANT, tenant_id="ada"))
        block_until(lambda: httpx.get(f"{server.address}/v1/jobs", trust_env=False).status_code == 401)
        keyed = Hand(server, worker_key)
        body = {"model": "able", "input": {"prompt": "a star", "seed": 7}, "num_previews": 3}
        options = {"server": keyed.address, "needsKey": True, "defaults": {"width": 64, "height": 64}}
        snippets = call(page, "snippets", "module.snippetsOf(...argument)", [body, options])
        assert len(snippets) == 3
        for number, snippet in enumerate(snippets):
            folder = tmp_path / str(number)
            folder.mkdir()
            lease = run_snippet(
                keyed, snippet["name"], snippet["text"], folder, DIFFUSERVE_API_KEY=tenant_key
            )
            assert (lease.input["prompt"], lease.input["seed"]) == ("a star", 7)
            assert [path.suffix for path in folder.iterdir()] == [".png"]
        keyed.disconnect()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["clip", "edit"])
def test_snippets_of_clips_and_edits_run_as_they_are(
    open_hand: Callable[..., Page], hand: Hand, tmp_path: Path, kind: str
) -> None:
    page = open_hand()
    image, mask = (upload(hand, color) for color in ((255, 0, 0), (255, 255, 255)))
    asked: dict[str, Any] = {"prompt": "a ball", "image": image, "seed": 3}
    body: dict[str, Any] = {"model": "able", "input": asked | {"mask": mask, "strength": 0.5}}
    if kind == "clip":
        body = {"model": "clips", "kind": "video.generate", "input": asked | {"num_frames": 9}}
    options = {
        "server": hand.address,
        "needsKey": False,
        "defaults": {"width": 64, "height": 64, "fps": 16, "num_frames": 17},
    }
    for snippet in call(page, "snippets", "module.snippetsOf(...argument)", [body, options]):
        folder = tmp_path / snippet["name"]
        folder.mkdir()
        complete = complete_clip if kind == "clip" else HandWorker.complete
        lease = run_snippet(hand, snippet["name"], snippet["text"], folder, complete)
        assert (lease.kind, lease.input["seed"]) == (body.get("kind", "image.generate"), 3)
        assert lease.input["image"]["id"] == image
        assert (lease.input["num_frames"], "mask" in lease.input) == (
            (9, False) if kind == "clip" else (1, True)
        )
        assert [path.suffix for path in folder.iterdir()] == [".mp4" if kind == "clip" else ".png"]


def upload(hand: Hand, color: tuple[int, int, int]) -> str:
    files = {"file": ("in.png", png(64, 64, color), "image/png")}
    response = httpx.post(f"{hand.address}/v1/files", files=files, timeout=HANG_SECONDS, trust_env=False)
    return str(response.raise_for_status().json()["id"])


def test_the_parts_without_a_page_decide_as_they_should(open_hand: Callable[..., Page]) -> None:
    """Sizes, lengths, the address and progress are pure functions of what the API tells."""
    page = open_hand()

    formats = {
        IMAGE_GENERATE: list(IMAGE_FORMATS),
        VIDEO_GENERATE: list(VIDEO_FORMATS),
        AUDIO_GENERATE: list(SOUND_FORMATS),
    }
    assert call(page, "job_request", "module.FORMATS") == formats

    flux = """{defaults: {width: 128, height: 128}, learned_sizes: {min: 96, max: 256},
        limits: {size_multiple: 16, min_size: 32, max_size: 1024, max_pixels: 1048576}}"""
    sizes = call(
        page, "presets", f"module.sizesOf({flux}).map(({{name, width, height}}) => [name, width, height])"
    )
    assert sizes == [
        ["Square", 128, 128],
        ["Landscape", 144, 112],
        ["Portrait", 112, 144],
        ["Wide", 176, 96],
        ["Tall", 96, 176],
        ["Large", 256, 256],
    ]
    single = flux.replace("min: 96, max: 256", "min: 128, max: 128")
    assert call(page, "presets", f"module.sizesOf({single}).length") == 1, (
        "what it has not learned is not offered"
    )
    limited = f"{{...{flux}, tiers: {{sizes: ['64x64', '128x96', '64x128'], steps: []}}}}"
    names = call(page, "presets", f"module.sizesOf({limited}).map(({{name, width}}) => [name, width])")
    assert names == [["Square", 64], ["Landscape", 128], ["Tall", 64]], "what is not allowed is not offered"
    clips = "{defaults: {num_frames: 17}, limits: {temporal_stride: 4, max_frames: 81}}"
    frames = call(page, "presets", f"module.lengthsOf({clips}, 16).map((length) => length.num_frames)")
    assert frames == [9, 17, 33, 49, 81]
    query = "prompt=a%26b&width=96&guidance_scale=2.5&expand_prompt=true"
    fields = "['width', 'seed'].map((name) => ({name, kind: 'integer'}))"
    fields = f"[...{fields}, {{name: 'guidance_scale', kind: 'number'}}]"
    opened = f"new URLSearchParams('{query}&seed=x&image=file-1')"
    read = f"module.queryOf(module.settingsFrom({opened}, {fields})).toString()"
    told = call(page, "query", read)
    assert dict(parse_qsl(told)) == dict(parse_qsl(query)), "what cannot be read, and images, are no settings"
    images = "{image: {id: 'a'}, mask: {id: 'b'}, control_image: {id: 'c'}, last_image: {id: 'd'}}"
    files = call(page, "job_request", f"module.filesOfJob({{input: {{prompt: 'e', seed: 1, ...{images}}}}})")
    named = {"control_image": "c", "last_image": "d"}
    assert files == {"images": ["a"], "mask": "b", "named": named, "prompts": [], "controls": []}
    able = "{limits: {controlnets: ['canny']}, defaults: {control_scale: 0.5}}"
    guided = f"module.filesOfJob({{input: {{{images[1:-1]}, image_prompts: {{id: 'p'}}}}}}, {able})"
    files = call(page, "job_request", guided)
    assert (files["prompts"], files["named"]) == (["p"], {"last_image": "d"})
    assert files["controls"] == [{"name": "canny", "image": "c", "weight": 0.5, "start": 0, "end": 1}]
    job = "{status: 'running', kind: 'video.generate', progress: {fraction: 1, frames: 8, num_frames: 16}}"
    assert call(page, "progress", f"module.fractionOf({job})") == pytest.approx(0.95)
    queued = "{status: 'queued', queue: {ahead: 1, ahead_high: 4, eta_s_low: 3.2, eta_s_high: 9}}"
    assert call(page, "progress", f"module.stageOf({queued})") == "Place 2–5 in the queue · done in 3–9 s"
    half = "{fraction: 0.5, step: 2, total: 4}"
    slow = f"{{status: 'running', kind: 'image.generate', cost_seconds: 28, progress: {half}}}"
    assert call(page, "progress", f"module.stageOf({slow})") == "Step 2 of 4 · about 14 s left"


def test_a_message_begins_with_a_capital_unless_that_is_a_name(open_hand: Callable[..., Page]) -> None:
    page = open_hand()
    texts = ["must be less", "num_frames=17 is too many", "tiny-flux: gone", "v2 is new", "seed=1", ""]
    told = call(page, "../../sentence", "argument.map(module.capitalized)", texts)
    assert told == ["Must be less", *texts[1:]], "names stay as they are"


Complete = Callable[[HandWorker, Lease], Coroutine[Any, Any, Any]]


def run_snippet(
    hand: Hand,
    name: str,
    text: str,
    folder: Path,
    complete: Complete = HandWorker.complete,
    **environment: str,
) -> Lease:
    """Run a snippet as a person would, while the worker does what it asks for."""
    command = ["bash", "-e", "-c", text] if name == "curl" else [sys.executable, "-c", text]
    env: Mapping[str, str] = {**os.environ, "no_proxy": "127.0.0.1", **environment}
    with subprocess.Popen(
        command, cwd=folder, env=env, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            lease = hand.claim(process)
            hand.does(complete(hand.worker, lease))
            told, _ = process.communicate(timeout=HANG_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 0, told
    return lease
