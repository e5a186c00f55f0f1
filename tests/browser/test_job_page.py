"""The page of a job in a real browser: its image, its timeline, live progress and actions."""

import re
from collections.abc import Iterator
from itertools import pairwise
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from support.browser import Axe, OpenPage, Screenshot, assert_fits, take_in
from support.clips import complete_clip, drawn_clip
from support.drawn_jobs import DrawnJobs
from support.hand_page import Hand

MARKUP = "a red circle </h1><script>alert(1)</script><b>bold</b>"
LONG = {"width": 768, "height": 768, "num_inference_steps": 100}  # canceled while it is drawn, on any CPU


@pytest.fixture(scope="module")
def jobs(server: str) -> Iterator[DrawnJobs]:
    with DrawnJobs(server) as jobs:
        yield jobs


def test_a_finished_job_shows_all_its_facts(page: Page, jobs: DrawnJobs) -> None:
    job_id = jobs.draw(MARKUP, seed=6)  # first: the prompt of the next one is encoded already
    sibling = jobs.draw(MARKUP, seed=5)
    page.goto(f"/gallery/{job_id}")
    expect(page.get_by_role("heading", level=1)).to_have_text(MARKUP)
    expect(page.get_by_role("img", name=MARKUP)).to_be_visible()
    facts = page.get_by_role("region", name="Facts")
    for name in ("Model", "Worker", "Device-seconds", "num_inference_steps", "max_sequence_length", "seed"):
        expect(facts.get_by_text(name, exact=True)).to_be_visible()
    expect(page.get_by_role("region", name="Same prompt").get_by_role("link", name="seed 5")).to_be_visible()

    phases = page.get_by_role("region", name="Timeline").get_by_role("listitem")
    expect(phases.filter(has_text="report")).to_have_count(1)
    names = [text.split("\n")[0].strip() for text in phases.all_inner_texts()]
    wanted = ["queue", "encode", "steps", "decode", "filter", "upload", "report"]
    assert [name for name in names if name in wanted] == wanted
    spans = phases.evaluate_all("items => items.map(({ dataset }) => [+dataset.start, +dataset.end])")
    job = jobs.get(job_id)
    assert spans[0][0] == 0
    assert all(start <= end for start, end in spans)
    assert all(before[1] == after[0] for before, after in pairwise(spans)), "no gap and no overlap"
    assert job["finished_at"] > job["created_at"]

    page.get_by_text("JSON", exact=True).click()
    expect(page.locator("pre")).to_contain_text(f'"id": "{job_id}"')
    href = page.get_by_role("link", name="Reuse in the playground").get_attribute("href")
    query = parse_qs(urlsplit(href or "").query)
    assert (query["prompt"], query["seed"], query["model"]) == ([MARKUP], ["6"], ["tiny-flux"])
    page.get_by_role("button", name="Copy id").click()
    assert page.evaluate("navigator.clipboard.readText()") == job_id
    with page.expect_download() as download:
        page.get_by_role("main").get_by_role("link", name="Download").first.click()
    assert download.value.suggested_filename.endswith(".png")

    jobs.delete(sibling)
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(page).to_have_url(re.compile(r"/gallery$"))
    assert not jobs.exists(job_id)


def test_a_running_job_is_live_until_it_is_canceled(page: Page, jobs: DrawnJobs) -> None:
    job_id = jobs.submit("a slow one", **LONG)
    page.goto(f"/gallery/{job_id}")
    state = page.get_by_role("main").get_by_role("status").first
    expect(state).to_contain_text("Step")
    first = state.inner_text()
    expect(state).not_to_have_text(first)
    page.get_by_role("button", name="Cancel").click()
    expect(state).to_have_text("Canceled")
    expect(page.get_by_role("region", name="Timeline").get_by_role("listitem").last).to_contain_text(
        "canceled"
    )
    page.get_by_role("button", name="Requeue").click()
    expect(state).to_contain_text("Step")
    jobs.cancel(job_id)
    expect(state).to_have_text("Canceled")
    jobs.delete(job_id)
    page.reload()
    expect(page.get_by_role("heading", name="There is no such job")).to_be_visible()


def test_previews_of_each_image_come_and_go_with_a_blocked_job(
    hand: Hand, open_page: OpenPage, axe: Axe, screenshot: Screenshot
) -> None:
    """Show nothing of what a filter withheld, neither here nor in the gallery (INV-7)."""
    job_id = hand.submit("two stars", input={"num_images": 2}, num_previews=3)
    page = open_page(hand.address, dark=True)
    page.goto(f"/gallery/{job_id}")
    state = page.get_by_role("main").get_by_role("status").first
    expect(state).to_have_text("Queued")
    lease = hand.claim()
    expect(state).to_contain_text("Running")
    previews = page.get_by_alt_text("Preview")
    first, second = hand.report(lease, 1, 60), hand.report(lease, 1, 200, image=1)
    expect(previews).to_have_count(2)
    expect(previews.nth(0)).to_have_attribute("src", first)
    expect(previews.nth(1)).to_have_attribute("src", second)
    expect(state).to_contain_text("Step 1 of 4")
    axe(page)
    screenshot(page, "job_running_dark")
    hand.does(hand.worker.fail(lease, "output_blocked"))
    expect(page.get_by_role("alert").filter(has_text="Blocked")).to_contain_text(
        "The engine says output_blocked"
    )
    assert page.locator("main img, main video").count() == 0
    axe(page)

    hand.submit("a star that breaks")
    hand.does(hand.worker.fail(hand.claim()))
    page.get_by_role("main").get_by_role("link", name="Gallery").click()
    jobs = page.get_by_role("list", name="Jobs").get_by_role("listitem")
    expect(jobs.filter(has_text="two stars")).to_contain_text("BlockedThe image filter withheld it")
    expect(jobs.filter(has_text="a star that breaks")).to_contain_text("The engine says broken")
    assert jobs.filter(has_text="two stars").locator("img").count() == 0
    axe(page)
    screenshot(page, "gallery_failed_dark")


def test_clips_play_on_their_page_and_in_the_gallery(
    hand: Hand, open_page: OpenPage, axe: Axe, screenshot: Screenshot
) -> None:
    fields = {"model": "clips", "kind": "video.generate", "live": True, "num_previews": 1}
    job_id = hand.submit("a square that crosses", **fields)
    page = open_page(hand.address)
    page.goto(f"/gallery/{job_id}")
    state, files = page.get_by_role("main").get_by_role("status").first, drawn_clip()
    expect(state).to_have_text("Queued")
    lease = hand.claim()
    expect(state).to_contain_text("Running")  # its events arrive
    hand.does(hand.worker.upload_part(lease, 0, files["live"])).raise_for_status()
    expect(page.get_by_label("The clip so far")).to_be_visible()
    hand.does(complete_clip(hand.worker, lease, files))
    clip = page.get_by_label("a square that crosses")
    expect(clip).to_have_js_property("duration", 9 / 8)
    expect(clip).to_have_attribute("poster", re.compile("poster"))
    page.get_by_text("All frames at a glance").click()
    expect(page.get_by_alt_text("Frames of the clip")).to_have_js_property("naturalWidth", 3 * 64)
    axe(page)
    screenshot(page, "job_clip")
    with page.expect_download() as download:
        page.get_by_role("main").get_by_role("link", name="Download").first.click()
    assert download.value.path().read_bytes() == files["video"]

    page.goto("/gallery?kind=video.generate")
    tile = page.get_by_role("listitem").filter(has_text="a square that crosses")
    expect(tile.get_by_text("clip", exact=False).first).to_be_visible()
    poster = tile.get_by_alt_text("a square that crosses")
    expect(poster).to_have_js_property("naturalWidth", 64)
    assert tile.locator("video").count() == 0, "nothing moves by itself"
    poster.hover()
    expect(tile.locator("video")).to_have_js_property("paused", False)
    page.get_by_role("heading", name="Gallery").hover()
    expect(tile.locator("video")).to_have_count(0)
    axe(page)
    screenshot(page, "gallery_clip")


def test_a_job_that_was_deleted_meanwhile_says_so(page: Page, jobs: DrawnJobs) -> None:
    job_id = jobs.submit("short-lived", **LONG)
    page.goto(f"/gallery/{job_id}")
    expect(page.get_by_role("heading", name="short-lived")).to_be_visible()
    jobs.delete(job_id)
    expect(page.get_by_role("heading", name="This job was deleted")).to_be_visible()
    page.get_by_role("link", name="To the gallery").click()
    expect(page.get_by_role("heading", name="Gallery")).to_be_visible()


def test_it_is_accessible_in_every_form(
    page: Page, jobs: DrawnJobs, axe: Axe, screenshot: Screenshot
) -> None:
    job_id = jobs.draw("a yellow triangle on a white background", num_images=2)
    page.goto(f"/gallery/{job_id}")
    expect(page.get_by_role("region", name="Timeline").get_by_role("listitem").last).to_be_visible()
    for dark in (False, True):
        take_in(page, dark=dark)
        axe(page)
        assert_fits(page)
        screenshot(page, "job_dark" if dark else "job")
    take_in(page, dark=True, phone=True)  # in the colors that were looked at
    assert_fits(page)
    screenshot(page, "job_phone")
