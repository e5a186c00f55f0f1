"""The frame of the page: its views and the way between them, in a real browser."""

from playwright.sync_api import Page, expect

from support.browser import Axe, Screenshot


def test_views_change_without_loading_and_keep_their_paths(
    page: Page, axe: Axe, screenshot: Screenshot
) -> None:
    page.goto("/")
    page.evaluate("window.isSamePage = true")
    page.get_by_role("link", name="Gallery").click()
    expect(page.get_by_role("heading", name="Gallery")).to_be_visible()
    assert page.url.endswith("/gallery")
    page.go_back()
    expect(page.get_by_role("heading", name="Playground")).to_be_visible()
    assert page.evaluate("window.isSamePage")
    axe(page)
    screenshot(page, "frame")
