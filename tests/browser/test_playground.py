"""The playground, in a real browser: the first image, live progress, failures, edits, and code to copy."""

import base64
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, expect

from diffuserve.domain.tenant import Role
from diffuserve.domain.worker import Lease
from diffuserve.settings import Settings
from support.browser import Axe, OpenPage, Screenshot
from support.clips import CLIPS, complete_clip
from support.hand_worker import HAND_SPEC, HandWorker
from support.image_files import png
from support.server_thread import ServerThread
from support.waiting import HANG_SECONDS, block_until

MARKUP = "<b>bold</b><img src=x onerror=\"document.title='owned'\">"
ABLE = replace(
    HAND_SPEC,
    name="able",
    has_guidance=True,
    guidance_scale=2.0,
    has_negative_prompt=True,
    samplers=("euler", "ddim"),
    sampler="euler",
    max_input_images=1,
    has_mask=True,
    has_strength=True,
    learned_min_size=64,
    learned_max_size=128,
    example_prompt="a hand that waves",
)
PLAN = {"page": {"max_queued": 3, "highest_band": "interactive"}}
DONE = re.compile("^Done in")
PATIENCE = 30_000
expect.set_options(timeout=PATIENCE)


class Hand:
    """A server whose worker does what the test says."""

    def __init__(self, server: ServerThread, key: str = "") -> None:
        self.address = server.address
        self._server = server
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.AsyncClient(base_url=server.address, headers=headers, trust_env=False)
        self.worker = server.call(HandWorker.register(self._http, [ABLE, CLIPS]))

    def does(self, work: Any) -> Any:
        """Await what the worker does."""
        return self._server.call(work)

    def claim(self) -> Lease:
        """Claim the next job, once there is one."""
        leases: list[Lease] = []

        def has_claimed() -> bool:
            leases[:] = self.does(self.worker.claim(wait=5.0))
            return bool(leases)

        block_until(has_claimed)
        return leases[0]

    def complete(self) -> Lease:
        """Claim the next job, and complete it."""
        lease = self.claim()
        self.does(self.worker.complete(lease)).raise_for_status()
        return lease

    def report(self, lease: Lease, step: int, shade: int) -> str:
        """Report a step with a preview of this gray, and return the preview's URL."""
        preview = png(8, 8, (shade, shade, shade))
        self.does(self.worker.report(lease, step, 4, preview)).raise_for_status()
        return f"data:image/png;base64,{base64.b64encode(preview).decode()}"

    def close(self) -> None:
        """Cancel what is queued, so that the next test begins with an empty queue."""
        self.does(self._clear())
        self.does(self._http.aclose())

    async def _clear(self) -> None:
        jobs = (await self._http.get("/v1/jobs", params={"status": ["queued", "running"]})).json()["data"]
        for job in jobs:
            await self._http.post(f"/v1/jobs/{job['id']}/cancel")
        await self.worker.deregister()


@pytest.fixture(scope="module")
def hand_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    folder = tmp_path_factory.mktemp("hand") / "data"
    settings = Settings(data_dir=folder, port=0, plans=PLAN, default_plan="page", lease_seconds=3600)  # type: ignore[arg-type]
    with ServerThread(settings, has_worker=False) as server:
        yield server


@pytest.fixture
def hand(hand_server: ServerThread) -> Iterator[Hand]:
    hand = Hand(hand_server)
    yield hand
    hand.close()


@pytest.fixture
def open_hand(open_page: OpenPage, hand: Hand) -> Callable[..., Page]:
    """Open the playground of the server by hand with settings: `open_hand(prompt="a star")`."""

    def open_one(phone: bool = False, **settings: object) -> Page:
        page = open_page(hand.address, phone=phone)
        page.goto(f"/?{httpx.QueryParams({'model': 'able', **settings})}")  # type: ignore[dict-item]
        expect(page.get_by_text("Ready", exact=True)).to_be_visible()
        return page

    return open_one


def newest(page: Page) -> Locator:
    """Return the card of the newest run."""
    return page.get_by_role("article").first


def generate(page: Page) -> Locator:
    page.get_by_role("button", name="Generate").click()
    return newest(page)


def test_a_newcomer_makes_the_first_image(page: Page, axe: Axe, screenshot: Screenshot) -> None:
    """Type nothing: the example is there."""
    page.goto("/")
    expect(page.get_by_text("Ready", exact=True)).to_be_visible()
    expect(page.get_by_label("Prompt", exact=True)).to_be_focused()
    page.keyboard.press("Control+Enter")
    card = newest(page)
    expect(card.get_by_role("status")).to_have_text(DONE, timeout=PATIENCE)
    shown = card.get_by_role("img", name="a red circle on a white background")
    expect(shown).to_be_visible()
    assert shown.evaluate("image => image.naturalWidth") == 128
    axe(page)
    screenshot(page, "playground-done")
    with page.expect_download() as download:
        card.get_by_role("link", name="Download").click()
    with Image.open(download.value.path()) as image:
        assert image.size == (128, 128)


def test_screenshots_show_variations_while_they_are_drawn(
    open_page: OpenPage, axe: Axe, screenshot: Screenshot
) -> None:
    page = open_page(dark=True)
    page.goto("/?prompt=a+blue+star+on+a+black+background&num_inference_steps=4")
    card = generate(page)
    expect(card.get_by_role("status")).to_have_text(DONE, timeout=PATIENCE)
    card.get_by_role("button", name="Variations").click()
    card = newest(page)
    expect(card.get_by_role("progressbar")).to_have_count(4)
    expect(card.get_by_role("img", name="Preview").first).to_be_visible(timeout=PATIENCE)
    screenshot(page, "playground-running-dark")
    expect(card.get_by_role("status")).to_have_text(DONE, timeout=PATIENCE)
    seeds = card.get_by_role("button", name=re.compile("^Seed")).all_inner_texts()
    assert len(set(seeds)) == 4
    axe(page)


def test_progress_and_preview_change_with_each_step(open_hand: Callable[..., Page], hand: Hand) -> None:
    page = open_hand(prompt=MARKUP)
    card = generate(page)
    expect(card.get_by_role("status")).to_contain_text("Next in the queue")
    expect(card.get_by_text(MARKUP)).to_be_visible()
    lease = hand.claim()
    assert lease.num_previews == 3, "one after each step but the last"
    bar, preview = (
        card.get_by_role("progressbar", name="Progress of image 1"),
        card.get_by_alt_text("Preview"),
    )
    for step in (1, 2, 3):
        sent = hand.report(lease, step, 60 * step)
        expect(bar).to_have_js_property("value", step / 4)
        expect(card.get_by_role("status")).to_have_text(f"Step {step} of 4")
        expect(preview).to_have_attribute("src", sent)
    page.reload()
    expect(newest(page).get_by_role("progressbar")).to_be_visible()
    hand.report(lease, 3, 240)
    expect(newest(page).get_by_role("progressbar")).to_have_js_property("value", 0.75)
    hand.does(hand.worker.complete(lease))
    expect(newest(page).get_by_role("status")).to_have_text(DONE)
    expect(newest(page).get_by_alt_text(MARKUP)).to_be_visible()
    assert page.title() != "owned"
    newest(page).get_by_role("button", name="Timings").click()
    expect(newest(page).get_by_text("denoise")).to_be_visible()


def test_places_in_the_queue_are_a_range_and_jobs_are_canceled_at_once(
    open_hand: Callable[..., Page], hand: Hand
) -> None:
    page = open_hand(prompt="a moon")
    first = generate(page).get_by_role("status")
    expect(first).to_contain_text("Next in the queue")
    page.get_by_label("Prompt", exact=True).fill("a star")
    second = generate(page)
    expect(second.get_by_role("status")).to_contain_text("Place 2 in the queue")
    second.get_by_role("button", name="Cancel").click()
    expect(second.get_by_role("alert")).to_contain_text("Canceled")
    lease = hand.claim()
    expect(page.get_by_role("article", name="a moon").get_by_role("status")).to_have_text("Starting")
    page.get_by_role("article", name="a moon").get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("article", name="a moon").get_by_role("status")).to_have_text("Canceling…")
    hand.does(hand.worker.heartbeat(lease))
    hand.does(hand.worker.release(lease))
    expect(page.get_by_role("article", name="a moon").get_by_role("alert")).to_contain_text("Canceled")


def test_failed_and_withheld_jobs_say_why_and_what_to_do(open_hand: Callable[..., Page], hand: Hand) -> None:
    page = open_hand(prompt="a star")
    for code, title, remedy in (
        ("broken", "Failed", "Change the settings, or try again"),
        ("output_blocked", "Withheld", "Try another seed, or reword the prompt"),
    ):
        card = generate(page)
        hand.does(hand.worker.fail(hand.claim(), code))
        expect(card.get_by_role("alert")).to_contain_text(title)
        expect(card.get_by_role("alert")).to_contain_text(f"The engine says {code}")
        expect(card.get_by_role("alert")).to_contain_text(remedy)
        card.get_by_role("button", name="Hide").click()
    expect(page.get_by_text("Your images appear here")).to_be_visible()


def test_errors_stand_beside_their_fields(open_hand: Callable[..., Page], axe: Axe) -> None:
    page = open_hand(prompt="a star", width=100, height=64, num_inference_steps=2)
    page.get_by_role("button", name="Generate").click()
    width = page.get_by_label("Width")
    expect(width).to_have_attribute("aria-invalid", "true")
    expect(width).to_be_focused()
    expect(page.locator("#setting-width-error")).to_have_text(
        "Must be a multiple of 16 pixels; try 96 or 112"
    )
    axe(page)
    width.fill("96")
    expect(page.locator("#setting-width-error")).to_have_count(0)
    page.get_by_label("Prompt", exact=True).fill("child porn")
    page.get_by_role("button", name="Generate").click()
    expect(page.locator("#setting-prompt-error")).to_contain_text("does not allow this prompt")
    expect(page.get_by_role("article")).to_have_count(0)


def test_a_full_queue_is_counted_down(open_hand: Callable[..., Page]) -> None:
    page = open_hand(prompt="a star")
    for number in range(3):
        generate(page)
        expect(page.get_by_role("article")).to_have_count(number + 1)
    page.get_by_role("button", name="Generate").click()
    expect(page.get_by_role("alert")).to_contain_text("3 jobs")
    expect(page.get_by_role("alert")).to_contain_text("Try again")
    expect(page.get_by_role("article")).to_have_count(3)


def test_the_form_offers_what_the_model_has_and_keeps_it_in_the_address(
    open_hand: Callable[..., Page], hand: Hand
) -> None:
    page = open_hand()
    expect(page.get_by_placeholder("a hand that waves")).to_be_visible()
    page.get_by_role("button", name="Try “a hand that waves”").click()
    page.get_by_role("radio", name="Large 128×128").check(force=True)
    page.get_by_text("More settings").click()
    page.get_by_label("Negative prompt").fill("text")
    page.get_by_label("Guidance").fill("3.5")
    page.get_by_label("Sampler").select_option("ddim")
    page.get_by_label("Priority").select_option("interactive")
    page.get_by_label("Images").fill("2")
    page.get_by_role("button", name="Draw a seed").click()
    seed = page.get_by_label("Seed", exact=False).first.input_value()
    page.wait_for_url(re.compile(f"guidance_scale=3.5.*|seed={seed}"))
    page.reload()
    generate(page)
    lease = hand.complete()
    wanted = {
        "prompt": "a hand that waves",
        "negative_prompt": "text",
        "width": 128,
        "height": 128,
        "guidance_scale": 3.5,
        "sampler": "ddim",
        "num_images": 2,
        "seed": int(seed),
    }
    assert {name: lease.input[name] for name in wanted} == wanted
    card = newest(page)
    expect(card.get_by_alt_text("a hand that waves")).to_have_count(2)
    page.get_by_label("Model").select_option("clips")
    expect(page.get_by_label("Negative prompt")).to_have_count(0)
    card.get_by_role("button", name="Same seed, other prompt").click()
    expect(page.get_by_label("Model")).to_have_value("able")
    expect(page.get_by_label("Prompt", exact=True)).to_be_focused()
    expect(page.get_by_label("Seed", exact=False).first).to_have_value(seed)


def test_images_are_edited_with_a_painted_mask(open_hand: Callable[..., Page], hand: Hand, axe: Axe) -> None:
    page = open_hand(prompt="a star")
    generate(page)
    hand.complete()
    newest(page).get_by_role("button", name="Edit image 1").click()
    expect(page.get_by_alt_text("Input image")).to_be_visible()
    page.get_by_role("button", name="Remove the image").click()
    files = [{"name": "in.png", "mimeType": "image/png", "buffer": png(64, 64)}]
    page.get_by_label("Drop, paste or choose an image").set_input_files(files)  # type: ignore[arg-type]
    page.get_by_role("button", name="Paint a mask").click()
    page.get_by_role("img", name="Mask: paint what is to change").click()
    page.get_by_role("button", name="Use this mask").click()
    expect(page.get_by_alt_text("Mask: white is filled in")).to_be_visible()
    page.get_by_label("Strength").fill("0.5")
    axe(page)
    page.get_by_label("Prompt", exact=True).fill("a moon")
    generate(page)
    lease = hand.claim()
    assert (lease.input["strength"], lease.input["image"]["width"]) == (0.5, 64)
    mask = httpx.get(f"{hand.address}/v1/files/{lease.input['mask']['id']}/content", trust_env=False)
    with Image.open(BytesIO(mask.content)) as painted:
        low, high = painted.convert("L").getextrema()
    assert (low, high) == (0, 255), "black, and white where it was painted"
    hand.does(hand.worker.complete(lease))
    expect(newest(page).get_by_role("status")).to_have_text(DONE)


def test_clips_tell_their_frames_and_play(open_hand: Callable[..., Page], hand: Hand) -> None:
    page = open_hand(prompt="a ball falls", model="clips")
    page.get_by_role("radio", name="1.1 s").check(force=True)
    card = generate(page)
    lease = hand.claim()
    assert (lease.kind, lease.live) == ("video.generate", True)
    report = {"phase": "decode", "step": 4, "total": 4, "frames": 8, "num_frames": 17}
    hand.does(hand.worker._post(lease, "events", report))
    expect(card.get_by_role("status")).to_have_text("Decoded 8 of 17 frames")
    hand.does(complete_clip(hand.worker, lease))
    expect(card.locator("video")).to_have_attribute("poster", re.compile("poster"))


def test_a_model_that_is_being_loaded_tells_how_far_it_is(open_page: OpenPage, hand: Hand) -> None:
    loading = {"phase": "weights", "bytes_read": 3_000_000, "bytes_total": 10_000_000}
    hand.does(hand.worker.beat("initializing", loading=loading))
    page = open_page(hand.address)
    page.goto("/")
    state = page.get_by_role("form").get_by_role("status")
    expect(state).to_contain_text("weights 3.0 of 10.0 MB, 30%")
    page.get_by_role("button", name="Generate").click()
    expect(newest(page).get_by_role("status")).to_contain_text("Waiting: able is being loaded")
    hand.does(hand.worker.beat("ready"))
    expect(state).to_have_text("Ready")
    expect(newest(page).get_by_role("status")).to_contain_text("Next in the queue")


def test_on_a_phone_the_result_comes_into_view(
    open_hand: Callable[..., Page], hand: Hand, axe: Axe, screenshot: Screenshot
) -> None:
    page = open_hand(phone=True, prompt="a red circle on a white background and a blue star")
    card = generate(page)
    expect(card.get_by_role("button", name="Cancel")).to_be_in_viewport()
    hand.complete()
    expect(card.get_by_role("status")).to_have_text(DONE)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    axe(page)
    screenshot(page, "playground-phone")


@pytest.mark.parametrize("name", ["curl", "Python", "OpenAI client"])
def test_snippets_run_as_they_are(
    open_hand: Callable[..., Page], hand: Hand, tmp_path: Path, name: str
) -> None:
    page = open_hand(prompt='it\'s a "star" \\ ☆', seed=7, guidance_scale=3, width=64, height=96)
    generate(page)
    lease = hand.complete()
    newest(page).get_by_role("button", name="Code").click()
    newest(page).get_by_role("button", name=name, exact=True).click()
    newest(page).get_by_role("button", name="Copy").click()
    text = page.evaluate("navigator.clipboard.readText()")
    again = run_snippet(hand, name, text, tmp_path)
    assert {**again.input} == {**lease.input}
    assert [path.suffix for path in tmp_path.iterdir()] == [".png"]


def test_snippets_of_a_server_with_keys_take_the_key_from_the_environment(
    open_hand: Callable[..., Page], tmp_path: Path
) -> None:
    page = open_hand()
    settings = Settings(data_dir=tmp_path / "data", port=0, lease_seconds=3600)
    with ServerThread(settings, has_worker=False) as server:
        _, worker_key = server.call(server.store.keys.create(Role.WORKER))
        _, tenant_key = server.call(server.store.keys.create(Role.TENANT, tenant_id="ada"))
        block_until(lambda: httpx.get(f"{server.address}/v1/models", trust_env=False).status_code == 401)
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


def test_the_parts_without_a_page_decide_as_they_should(open_hand: Callable[..., Page]) -> None:
    """Sizes, lengths, the address and progress are pure functions of what the API tells."""
    page = open_hand()

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
    clips = "{defaults: {num_frames: 17}, limits: {temporal_stride: 4, max_frames: 81}}"
    frames = call(page, "presets", f"module.lengthsOf({clips}, 16).map((length) => length.num_frames)")
    assert frames == [9, 17, 33, 49, 81]
    query = "prompt=a%26b&width=96&guidance_scale=2.5&expand_prompt=true"
    read = (
        f"module.queryOf(module.settingsFrom(new URLSearchParams('{query}&seed=x&image=file-1'))).toString()"
    )
    assert call(page, "query", read) == query, "what cannot be read, and images, are no settings"
    job = "{status: 'running', kind: 'video.generate', progress: {fraction: 1, frames: 8, num_frames: 16}}"
    assert call(page, "progress", f"module.fractionOf({job})") == pytest.approx(0.95)
    queued = "{status: 'queued', queue: {ahead: 1, ahead_high: 4, eta_s_low: 3.2, eta_s_high: 9}}"
    assert call(page, "progress", f"module.stageOf({queued})") == "Place 2–5 in the queue · done in 3–9 s"


def call(page: Page, name: str, expression: str, argument: object = None) -> Any:
    """Evaluate an expression with a module of the playground, in the page."""
    script = f"""async (argument) => {{
      const main = document.querySelector("script[type=module]").src;
      const module = await import(new URL("views/playground/{name}.js", main));
      return {expression};
    }}"""
    return page.evaluate(script, argument)


def run_snippet(hand: Hand, name: str, text: str, folder: Path, **environment: str) -> Lease:
    """Run a snippet as a person would, while the worker does what it asks for."""
    command = ["bash", "-e", "-c", text] if name == "curl" else [sys.executable, "-c", text]
    env: Mapping[str, str] = {**os.environ, "no_proxy": "127.0.0.1", **environment}
    with subprocess.Popen(command, cwd=folder, env=env, stderr=subprocess.PIPE, text=True) as process:
        try:
            lease = hand.complete()
            _, errors = process.communicate(timeout=HANG_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    return lease
