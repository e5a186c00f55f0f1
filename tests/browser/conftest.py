"""Fixtures of tests in a real browser: servers with the bundled model, pages and what every page must keep.

Chromium is the system's; Playwright's own downloads are never used. Without Chromium these tests skip.
"""

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Page,
    Playwright,
    expect,
    sync_playwright,
)

from diffuserve.domain.tenant import Role
from diffuserve.settings import Settings
from support.browser import (
    Axe,
    KeyedServer,
    OpenPage,
    Screenshot,
    Watcher,
    assert_accessible,
    take_in,
    write_screenshot,
)
from support.diffuserve_process import serving
from support.hand_page import PLAN, Hand
from support.server_thread import ServerThread
from support.waiting import HANG_SECONDS, block_until

_PATIENCE_MS = 120_000  # for a busy machine
expect.set_options(timeout=_PATIENCE_MS)

_Driver = tuple[Playwright, asyncio.AbstractEventLoop]


@pytest.fixture(scope="session")
def chromium() -> str:
    """The program's path; without it the test skips."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    return path


@pytest.fixture(scope="session")
def _playwright() -> Iterator[_Driver]:
    """The driver, whose loop counts as running in this thread: it is hidden from all other tests."""
    driver = sync_playwright().start()
    loop = asyncio.get_running_loop()
    asyncio._set_running_loop(None)
    yield driver, loop
    asyncio._set_running_loop(loop)
    driver.stop()


@pytest.fixture(scope="session")
def _browser(chromium: str, _playwright: _Driver) -> Iterator[Browser]:
    driver, loop = _playwright
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # which root cannot have
    asyncio._set_running_loop(loop)
    browser = driver.chromium.launch(executable_path=chromium, args=arguments)
    asyncio._set_running_loop(None)
    yield browser
    asyncio._set_running_loop(loop)
    browser.close()
    asyncio._set_running_loop(None)


@pytest.fixture
def browser(_browser: Browser, _playwright: _Driver) -> Iterator[Browser]:
    """The browser that all tests of a process share."""
    asyncio._set_running_loop(_playwright[1])
    yield _browser
    asyncio._set_running_loop(None)


@pytest.fixture(scope="session")
def server(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server without keys that draws with tiny-flux, shared by all tests of a process."""
    folder = tmp_path_factory.mktemp("server")
    with serving("--device", "cpu", environment=_environment(folder), log=folder / "log") as address:
        yield address


@pytest.fixture(scope="session")
def keyed_server(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedServer]:
    """A server with keys in this process, without a worker."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("keyed") / "data", port=0)
    with ServerThread(settings, has_worker=False) as server:
        _, operator_key = server.call(server.store.keys.create(Role.OPERATOR))
        _, tenant_key = server.call(server.store.keys.create(Role.TENANT, tenant_id="ada"))
        block_until(lambda: _asks_for_keys(server.address))
        yield KeyedServer(server.address, operator_key, tenant_key)


@pytest.fixture
def watchers() -> Iterator[list[Watcher]]:
    """The watchers of the test's pages, asked for their faults at its end."""
    watchers: list[Watcher] = []
    yield watchers
    faults = [fault for watcher in watchers for fault in watcher.faults]
    assert not faults, "\n".join(faults)


@pytest.fixture(scope="session")
def _contexts() -> dict[str, BrowserContext]:
    """The contexts of the session, by server: what a page has loaded is there for the next one."""
    return {}


@pytest.fixture
def open_page(
    request: pytest.FixtureRequest,
    browser: Browser,
    watchers: list[Watcher],
    _contexts: dict[str, BrowserContext],
) -> Iterator[OpenPage]:
    """Open a page of somebody who is new there: `open_page(address, dark=True, phone=True)`."""
    pages: list[Page] = []

    def open_one(address: str | None = None, *, dark: bool = False, phone: bool = False) -> Page:
        address = address or str(request.getfixturevalue("server"))
        if address not in _contexts:
            permissions = ["clipboard-read", "clipboard-write"]
            _contexts[address] = browser.new_context(base_url=address, permissions=permissions)
            _contexts[address].set_default_timeout(_PATIENCE_MS)
        page = _contexts[address].new_page()
        take_in(page, dark=dark, phone=phone)
        pages.append(page)
        watcher = Watcher(urlsplit(address).netloc)
        watcher.watch(page)
        watchers.append(watcher)
        return page

    yield open_one
    for page in pages:
        if page.url.startswith("http"):
            page.evaluate("localStorage.clear()")
        page.context.clear_cookies()
        page.close()


@pytest.fixture
def page(open_page: OpenPage) -> Page:
    """A page of the server without keys: `page.goto("/gallery")`."""
    return open_page()


@pytest.fixture
def dark_page(open_page: OpenPage) -> Page:
    """The same for someone who prefers dark colors."""
    return open_page(dark=True)


@pytest.fixture
def phone_page(open_page: OpenPage) -> Page:
    """The same on a screen that is 360 pixels wide."""
    return open_page(phone=True)


@pytest.fixture
def keyed_page(open_page: OpenPage, keyed_server: KeyedServer) -> Page:
    """A page of the server with keys, where nobody is signed in."""
    return open_page(keyed_server.address)


@pytest.fixture
def axe() -> Axe:
    """Assert that a page has no serious fault of accessibility: `axe(page)`."""
    return assert_accessible


@pytest.fixture
def screenshot() -> Screenshot:
    """Write what a page shows to out/screenshots/NAME.png: `screenshot(page, NAME)`."""
    return write_screenshot


def _asks_for_keys(address: str) -> bool:
    """Return whether a server has noticed its first key."""
    return httpx.get(f"{address}/v1/jobs", trust_env=False, timeout=HANG_SECONDS).status_code == 401


def _environment(folder: Path) -> dict[str, str]:
    return {
        "DIFFUSERVE_DATA_DIR": str(folder / "data"),
        "DIFFUSERVE_CACHE_DIR": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture(scope="session")
def hand_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """A server in this process without a worker of its own."""
    folder = tmp_path_factory.mktemp("hand") / "data"
    settings = Settings.with_options(
        data_dir=folder,
        port=0,
        plans=PLAN,
        default_plan="page",
        lease_seconds=3600,
        allow_unjudged_audio=True,
    )
    with ServerThread(settings, has_worker=False) as server:
        yield server


@pytest.fixture
def hand(hand_server: ServerThread) -> Iterator[Hand]:
    """A server whose worker does what the test says."""
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
