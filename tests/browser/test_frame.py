"""The frame of the page in a real browser: views, sign-in, colors, a server that goes away."""

import re

from playwright.sync_api import Page, expect

from support.browser import Axe, KeyedServer, Screenshot, Watcher, take_in


def test_views_change_without_loading_and_keep_their_paths(page: Page) -> None:
    page.goto("/")
    page.evaluate("window.isSamePage = true")
    expect(page).to_have_title("Playground · diffuserve")
    page.get_by_role("link", name="Gallery").click()
    expect(page).to_have_title("Gallery · diffuserve")
    expect(page).to_have_url(re.compile("/gallery$"))
    expect(page.get_by_role("link", name="Gallery")).to_have_attribute("aria-current", "page")
    expect(page.get_by_role("main")).to_be_focused()
    page.go_back()
    expect(page).to_have_title("Playground · diffuserve")
    assert page.evaluate("window.isSamePage")


def test_a_path_that_is_none_says_so(page: Page, axe: Axe, watchers: list[Watcher]) -> None:
    watchers[0].allow("404 (Not Found)")
    assert page.goto("/nothing/here").status == 404  # type: ignore[union-attr]
    expect(page.get_by_role("heading", name="There is nothing here")).to_be_visible()
    for dark in (False, True):
        take_in(page, dark=dark)
        axe(page)
    page.get_by_role("main").get_by_role("link", name="gallery").click()
    expect(page).to_have_title("Gallery · diffuserve")


def test_colors_are_chosen_and_kept(dark_page: Page) -> None:
    dark_page.goto("/gallery")
    theme = dark_page.get_by_label("Colors")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = dark_page.evaluate(background)
    theme.select_option("Light")
    expect(dark_page.locator("html")).to_have_attribute("data-theme", "light")
    light = dark_page.evaluate(background)
    assert light != dark
    dark_page.reload()
    expect(theme).to_have_value("light")
    assert dark_page.evaluate(background) == light
    theme.select_option("System")
    assert dark_page.evaluate(background) == dark


def test_a_keyboard_reaches_everything_in_order(page: Page) -> None:
    page.goto("/gallery")
    expect(page.get_by_role("contentinfo").get_by_role("link")).to_be_visible()
    names = []
    for _ in range(6):
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.textContent.trim().slice(0, 19)"))
    assert names == [
        "Skip to the content",
        "diffuserve",
        "Playground",
        "Gallery",
        "Operations",
        "SystemLightDark",
    ]
    page.get_by_role("link", name="Skip to the content").press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    assert page.url.endswith("/gallery")


def test_a_tenant_signs_in_once_and_out(
    keyed_page: Page, keyed_server: KeyedServer, axe: Axe, screenshot: Screenshot
) -> None:
    page = keyed_page
    page.goto("/gallery")
    key = page.get_by_label("API key")
    expect(key).to_be_visible()
    expect(page.get_by_role("navigation")).to_have_count(0)
    axe(page)
    take_in(page, dark=True)
    axe(page)
    key.fill("dfs_0_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert").filter(has_text="not valid")).to_be_visible()
    expect(key).to_have_attribute("aria-invalid", "true")
    screenshot(page, "sign_in")

    key.fill(keyed_server.tenant_key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("Tenant ada")).to_be_visible()
    expect(page.get_by_role("link", name="Operations")).to_have_count(0)
    assert keyed_server.tenant_key not in page.content() + page.url
    assert page.evaluate("document.cookie + JSON.stringify(localStorage)").find("dfs_") == -1
    page.reload()
    expect(page.get_by_text("Tenant ada")).to_be_visible()

    page.get_by_role("button", name="Sign out everywhere").click()
    expect(key).to_be_visible()
    key.fill(keyed_server.tenant_key)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name="Sign out", exact=True).click()
    expect(key).to_be_visible()


def test_the_reference_of_the_api_is_the_packages_own(page: Page) -> None:
    page.goto("/docs")
    expect(page.get_by_text("/v1/jobs", exact=True).first).to_be_visible()


def test_the_frame_fits_a_phone(phone_page: Page, keyed_server: KeyedServer, screenshot: Screenshot) -> None:
    phone_page.goto("/gallery")
    expect(phone_page.get_by_role("link", name="Operations")).to_be_visible()
    assert phone_page.evaluate("document.documentElement.scrollWidth") == 360
    screenshot(phone_page, "frame_phone")
