"""The gallery in a real browser: pages, filters, selection, zips, deletion."""

import json
import re
import zipfile
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from support.browser import Axe, Screenshot, Watcher, assert_fits, take_in
from support.drawn_jobs import DrawnJobs

MARKUP = "a crimson circle <img src=x onerror=alert(1)> <b>bold</b>"


@pytest.fixture(scope="module")
def jobs(server: str) -> Iterator[DrawnJobs]:
    with DrawnJobs(server) as jobs:
        for prompt in ("a green square", MARKUP, "a blue star"):
            jobs.draw(prompt, seed=7)
        yield jobs


def tiles(page: Page) -> Locator:
    return page.get_by_role("list", name="Jobs").get_by_role("listitem")


def test_jobs_are_filtered_and_the_address_keeps_it(page: Page, jobs: DrawnJobs, axe: Axe) -> None:
    page.goto("/gallery?kind=image.generate")
    expect(tiles(page).first).to_contain_text("a blue star")
    page.get_by_label("Words of the prompt").fill("CIRCLE crimson")
    expect(tiles(page)).to_have_count(1)
    expect(tiles(page)).to_contain_text(MARKUP)
    expect(page.get_by_role("img", name=MARKUP)).to_be_visible()
    assert page.evaluate("document.querySelector('.gallery-grid b') === null")
    expect(page).to_have_url(re.compile(r"kind=image.generate&query=CIRCLE\+crimson$"))
    page.reload()
    expect(page.get_by_label("Words of the prompt")).to_have_value("CIRCLE crimson")
    expect(tiles(page)).to_have_count(1)
    page.get_by_label("Status").select_option("Failed")
    expect(page.get_by_text("No job matches these filters.")).to_be_visible()
    axe(page)


def test_new_jobs_come_on_top_and_go_when_they_are_deleted(page: Page, jobs: DrawnJobs) -> None:
    page.goto("/gallery")
    expect(tiles(page).first).to_contain_text("a blue star")
    job_id = jobs.draw("a newcomer")
    expect(tiles(page).first).to_contain_text("a newcomer")
    expect(page.get_by_role("img", name="a newcomer")).to_be_visible()
    jobs.delete(job_id)
    expect(tiles(page).first).to_contain_text("a blue star")


def test_an_image_whose_url_has_expired_is_asked_for_again(
    page: Page, jobs: DrawnJobs, watchers: list[Watcher]
) -> None:
    """Scroll down in a page that was open for hours: images are fetched when they are first seen."""
    watchers[0].allow("Failed to load resource: net::ERR")
    asked: set[str] = set()

    def refuse_once(route: Route) -> None:
        path = urlsplit(route.request.url).path
        route.continue_() if path in asked else route.abort()
        asked.add(path)

    page.route("**/files/**", refuse_once)
    with page.expect_response(lambda response: "/files/" in response.url and response.ok):
        page.goto("/gallery?kind=image.generate")
    expect(page.get_by_role("img", name="a blue star")).to_be_visible()
    expect(page.get_by_text("The file is not there any more")).to_have_count(0)


def test_pages_follow_one_another(page: Page, jobs: DrawnJobs) -> None:
    batch_id = jobs.canceled_batch("a stack of cards", 120)
    page.goto(f"/gallery?batch_id={batch_id}")
    expect(page.get_by_role("button", name="Show more than One batch")).to_be_visible()
    tile = tiles(page)
    for place in (49, 99):
        expect(tile.nth(place)).to_be_attached()
        tile.nth(place).scroll_into_view_if_needed()
    expect(tile).to_have_count(120)
    ids = tile.evaluate_all("tiles => tiles.map((tile) => tile.dataset.job)")
    assert ids == sorted(set(ids), reverse=True), "each once, newest first"
    tile.nth(100).get_by_role("link").click()
    expect(page.get_by_role("heading", name="a stack of cards")).to_be_visible()
    page.go_back()
    expect(tile.nth(100)).to_be_in_viewport()


def test_selected_jobs_are_downloaded_and_deleted(
    page: Page, jobs: DrawnJobs, screenshot: Screenshot
) -> None:
    doomed = [jobs.draw(f"doomed {name}", seed=3) for name in ("one", "two", "three")]
    page.goto("/gallery?query=doomed")
    expect(tiles(page)).to_have_count(3)
    page.get_by_label("Select doomed three").click()
    page.get_by_label("Select doomed one").click(modifiers=["Shift"])
    expect(page.get_by_text("3 jobs selected")).to_be_visible()
    page.get_by_label("Select doomed two").press("Space")
    expect(page.get_by_text("2 jobs selected")).to_be_visible()
    screenshot(page, "gallery_selection")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download zip").click()
    with zipfile.ZipFile(download.value.path()) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        names = {f"doomed-three_3_{doomed[2]}.png", f"doomed-one_3_{doomed[0]}.png", "manifest.json"}
        assert set(archive.namelist()) == names
    assert [job["id"] for job in manifest["jobs"]] == [doomed[2], doomed[0]]

    jobs.delete(doomed[0])  # by somebody else meanwhile: it is gone, which is what was wanted
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(tiles(page)).to_have_count(1)
    assert [jobs.exists(job_id) for job_id in doomed] == [False, True, False]
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_what_was_not_deleted_is_told(page: Page, jobs: DrawnJobs) -> None:
    job_id = jobs.draw("stubborn")
    page.goto("/gallery?query=stubborn")
    refusal = {"status": 409, "json": {"code": "conflict", "detail": "the job is held"}}
    page.route(f"**/v1/jobs/{job_id}", lambda route: route.fulfill(**refusal))
    page.get_by_label("Select stubborn").check()
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("alert").filter(has_text=f"{job_id}: the job is held")).to_be_visible()
    assert jobs.exists(job_id)


def test_it_is_accessible_in_every_form(
    page: Page, jobs: DrawnJobs, axe: Axe, screenshot: Screenshot
) -> None:
    page.goto("/gallery?kind=image.generate&query=a")
    expect(page.get_by_role("listitem").first).to_be_visible()
    for dark in (False, True):
        take_in(page, dark=dark)
        axe(page)
        assert_fits(page)
        screenshot(page, "gallery_dark" if dark else "gallery")
    take_in(page, dark=True, phone=True)  # in the colors that were looked at
    assert_fits(page)
    screenshot(page, "gallery_phone")
