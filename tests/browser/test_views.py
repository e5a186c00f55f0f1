"""Properties of every view in a real browser: accessible, narrow, text only, there after a restart."""

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from diffuserve.settings import Settings
from support.browser import Axe, OpenPage, Screenshot, Watcher, assert_fits, take_in
from support.hand_page import Hand
from support.server_thread import ServerThread

MARKUP = """<img src=x onerror="document.title='taken'"><script>document.title='taken'</script> & so on"""
MAX_BYTES = 150_000
NOTE_INTERACTIVE = """new MutationObserver(() => {
  const isThere = document.querySelector(".playground-form button[type=submit]:enabled");
  if (isThere && window.interactiveAt === undefined) window.interactiveAt = performance.now();
}).observe(document, { childList: true, subtree: true, attributes: true })"""


def test_every_view_is_accessible_and_fits(
    open_hand: Callable[..., Page], axe: Axe, screenshot: Screenshot
) -> None:
    """Look at what has no data yet; the views with data are looked at where it is made."""
    page = open_hand()
    for name, title in (("playground", "Playground"), ("gallery", "Gallery"), ("ops", "Operations")):
        page.get_by_role("navigation").get_by_role("link", name=title).click()
        expect(page).to_have_title(f"{title} · diffuserve")
        expect(page.get_by_role("main").get_by_role("heading", level=1)).to_be_attached()
        take_in(page, dark=True)
        axe(page)
        take_in(page, phone=True)
        axe(page)
        assert_fits(page)
        screenshot(page, f"empty_{name}_phone")
        take_in(page)
        assert_fits(page)


def test_a_prompt_full_of_markup_is_text_everywhere(open_hand: Callable[..., Page], hand: Hand) -> None:
    job_id = hand.submit(MARKUP)
    page = open_hand(prompt=MARKUP)
    expect(page.get_by_label("Prompt", exact=True)).to_have_value(MARKUP)
    for path in ("/gallery", f"/gallery/{job_id}", "/ops"):
        page.goto(path)
        expect(page.get_by_role("main").get_by_role("heading", level=1)).to_be_attached()
        if path == "/ops":
            page.get_by_role("region", name="Queue", exact=True).get_by_role("button", name="default").click()
        expect(page.get_by_text(MARKUP).first).to_be_attached()
        assert page.locator("img[src='x'], main script").count() == 0
        assert "taken" not in page.title()


def test_the_first_load_is_small_and_soon_there(browser: Browser, hand: Hand) -> None:
    """Load it in a browser that has nothing of it yet, and note when a prompt can be typed and sent."""
    with browser.new_context(base_url=hand.address) as context:
        page = context.new_page()
        page.add_init_script(NOTE_INTERACTIVE)
        page.goto("/")
        expect(page.get_by_role("button", name="Generate")).to_be_enabled()
        entries = "performance.getEntries().filter(entry => 'encodedBodySize' in entry)"
        num_bytes = page.evaluate(f"{entries}.reduce((sum, entry) => sum + entry.encodedBodySize, 0)")
        print(f"{num_bytes:,} bytes; interactive after {page.evaluate('window.interactiveAt'):.0f} ms")
    assert 10_000 < num_bytes < MAX_BYTES


def test_a_page_recovers_from_a_restart_of_its_server(
    open_page: OpenPage, watchers: list[Watcher], tmp_path: Path
) -> None:
    settings = Settings(data_dir=tmp_path / "data", port=0)
    with ServerThread(settings, has_worker=False) as server:
        page = open_page(server.address)
        watchers[0].allow("Failed to load resource: net::ERR")
        page.goto("/gallery")
        expect(page.get_by_role("heading", name="Gallery")).to_be_visible()
        port = int(server.address.rpartition(":")[2])
    expect(page.get_by_text("The server is away")).to_be_visible()  # though nobody has touched the page
    page.get_by_role("link", name="Playground").click()  # whose modules were not needed before
    with ServerThread(settings.model_copy(update={"port": port}), has_worker=False):
        expect(page.get_by_text("The server is away")).to_have_count(0)
        expect(page.get_by_role("heading", name="Playground")).to_be_attached()
        page.goto("about:blank")  # its streams would hold up the server's end
