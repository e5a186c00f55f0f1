"""Checks that tests in a real browser share: accessibility, faults of a page, screenshots."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import ConsoleMessage, Page, Request, ViewportSize

PHONE = ViewportSize(width=360, height=740)
DESK = ViewportSize(width=1280, height=800)

_SCREENSHOTS = Path(__file__).parents[2] / "out" / "screenshots"
_AXE = files("axe_playwright_python") / "axe.min.js"
_RUN_AXE = """() => axe.run(document, {resultTypes: ['violations'], preload: false})
.then(result => result.violations)"""  # its preload would add style elements, which the policy refuses too
_OVERFLOWING = """() => [...document.querySelectorAll("body *")].filter((element) => {
  const { right, width, height } = element.getBoundingClientRect();
  const isSeen = width > 1 && height > 1 && getComputedStyle(element).visibility !== "hidden";
  return isSeen && right > innerWidth + 0.5 && !element.closest(".scroll, pre");
}).map((element) => element.outerHTML.slice(0, 150))"""
_GRAVE = {"serious", "critical"}
# Chromium reports every refusal of the API as an error of the console; the page shows them by itself.
_REFUSAL = "Failed to load resource: the server responded with a status of 4"

Axe = Callable[[Page], None]
Screenshot = Callable[[Page, str], Path]
OpenPage = Callable[..., Page]


@dataclass(frozen=True)
class KeyedServer:
    """A server that asks for keys, with one of an operator and one of the tenant `ada`."""

    address: str
    operator_key: str
    tenant_key: str


@dataclass
class Watcher:
    """Notes what a page must not do: errors, and requests to other origins."""

    origin: str
    allowed: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        """Note the faults of a page from now on."""
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self._note(f"page error: {error}"))
        page.on("request", self._on_request)

    def allow(self, text: str) -> None:
        """Let a test bring about errors that contain this text, such as those of a server that is away."""
        self.allowed.append(text)

    def _on_console(self, message: ConsoleMessage) -> None:
        is_refusal = message.text.startswith(_REFUSAL) and "/v1/" in message.location["url"]
        if message.type == "error" and not is_refusal:
            self._note(f"console: {message.text} at {message.location['url']}")

    def _on_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in {"http", "https", "ws", "wss"} and parts.netloc != self.origin:
            self._note(f"request to another origin: {request.url}")

    def _note(self, fault: str) -> None:
        if not any(text in fault for text in self.allowed):
            self.faults.append(fault)


def assert_accessible(page: Page) -> None:
    """Assert that a page has no serious fault of accessibility."""
    if page.evaluate("typeof axe") == "undefined":
        page.evaluate(_AXE.read_text("utf-8"))  # the page's policy refuses script elements
    grave = [fault for fault in page.evaluate(_RUN_AXE) if fault["impact"] in _GRAVE]
    assert not grave, "\n".join(
        f"{fault['id']}: {fault['help']}: {node['html']}" for fault in grave for node in fault["nodes"]
    )


def assert_fits(page: Page) -> None:
    """Assert that nothing is wider than the window, but for what scrolls by itself."""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"
    assert page.evaluate(_OVERFLOWING) == [], page.evaluate(_OVERFLOWING)


def take_in(page: Page, *, dark: bool = False, phone: bool = False) -> None:
    """Show a page in another form, without loading it again."""
    page.emulate_media(color_scheme="dark" if dark else "light")
    page.set_viewport_size(PHONE if phone else DESK)


def write_screenshot(page: Page, name: str) -> Path:
    """Write what a page shows to out/screenshots/NAME.png."""
    path = _SCREENSHOTS / f"{name}.png"
    page.screenshot(path=path, full_page=True)
    return path
