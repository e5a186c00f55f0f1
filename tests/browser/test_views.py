"""Properties of every view in a real browser: accessible, narrow, text only, there after a restart."""

import socket
import sys
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from support.browser import Axe, OpenPage, Screenshot, Watcher
from support.diffuserve_process import serving
from support.waiting import HANG_SECONDS

PATHS = ("/", "/gallery", "/ops")
MARKUP = """<img src=x onerror="document.title='taken'"><script>document.title='taken'</script> & so on"""
MOST_BYTES = 150_000


@pytest.mark.parametrize(("dark", "phone"), [(False, True), (True, False)], ids=["light phone", "dark desk"])
def test_every_view_is_accessible_and_fits(
    open_page: OpenPage, axe: Axe, screenshot: Screenshot, dark: bool, phone: bool
) -> None:
    page = open_page(dark=dark, phone=phone)
    for path in PATHS:
        page.goto(path)
        expect(page.get_by_role("main").get_by_role("heading", level=1)).to_be_attached()
        expect(page.get_by_role("contentinfo").get_by_role("link")).to_be_visible()
        axe(page)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width == page.evaluate("innerWidth"), f"{path} scrolls sideways"
        form = f"{'dark' if dark else 'light'}_{'phone' if phone else 'desk'}"
        screenshot(page, f"view_{path.strip('/') or 'playground'}_{form}")


def test_a_prompt_full_of_markup_is_text_everywhere(page: Page, server: str) -> None:
    request = {"input": {"prompt": MARKUP, "num_inference_steps": 1, "width": 64, "height": 64}}
    with httpx.Client(base_url=server, trust_env=False, timeout=HANG_SECONDS) as http:
        job = http.post("/v1/jobs", json=request).raise_for_status().json()
        http.get(f"/v1/jobs/{job['id']}", params={"wait": 60})
    for path in ("/gallery", f"/gallery/{job['id']}", "/ops"):
        page.goto(path)
        expect(page.get_by_role("main").get_by_role("heading", level=1)).to_be_attached()
        if path != "/ops":
            expect(page.get_by_text(MARKUP).or_(page.get_by_alt_text(MARKUP)).first).to_be_attached()
        assert page.locator("img[src='x'], main script").count() == 0
        assert "taken" not in page.title()
    page.goto("/")
    field = page.get_by_role("textbox", name="Prompt", exact=False).first
    field.fill(MARKUP)
    expect(field).to_have_value(MARKUP)
    assert page.locator("img[src='x'], main script").count() == 0


def test_the_first_load_is_small_and_soon_there(page: Page) -> None:
    page.goto("/")
    expect(page.get_by_role("main").get_by_role("heading", level=1)).to_be_attached()
    entries = "performance.getEntriesByType('resource').filter(entry => entry.name.includes('/web/'))"
    num_bytes = page.evaluate(f"{entries}.reduce((sum, entry) => sum + entry.encodedBodySize, 0)")
    ready = page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
    print(f"{num_bytes:,} bytes of modules and styles; interactive after {ready:.0f} ms")
    assert 10_000 < num_bytes < MOST_BYTES


def test_a_page_recovers_from_a_restart_of_its_server(
    open_page: OpenPage, watchers: list[Watcher], tmp_path: Path
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = {
        "DIFFUSERVE_DATA_DIR": str(tmp_path / "data"),
        "DIFFUSERVE_CACHE_DIR": str(tmp_path / "cache"),
    }
    engine = ("--engine-command", f"{sys.executable} -m diffuserve.testing.null_engine", "--port", port)
    with serving(*engine, environment=environment, log=tmp_path / "log") as address:
        page = open_page(address)
        watchers[0].allow("Failed to load resource: net::ERR")
        page.goto("/gallery")
        expect(page.get_by_role("heading", name="Gallery")).to_be_visible()
    page.get_by_role("link", name="Playground").click()  # whose modules were not needed before
    expect(page.get_by_text("The server is away")).to_be_visible()
    with serving(*engine, environment=environment, log=tmp_path / "log") as address:
        expect(page.get_by_text("The server is away")).to_have_count(0)
        expect(page.get_by_role("heading", name="Playground")).to_be_attached()
        page.goto("about:blank")  # its streams would hold up the server's end
