"""The operators' view in a real browser."""

from playwright.sync_api import Page, expect

from support.browser import Axe, Screenshot


def test_an_operator_sees_that_all_is_well(page: Page, axe: Axe, screenshot: Screenshot) -> None:
    page.goto("/ops")
    main = page.get_by_role("main")
    expect(main.get_by_role("status").filter(has_text="All well: 1 worker ready")).to_be_visible()
    expect(main.get_by_role("img", name="Throughput").locator("canvas")).to_be_visible()
    expect(main.get_by_role("table").first.get_by_role("button", name="Drain")).to_be_visible()
    main.get_by_role("button", name="Throughput as a table").click()
    expect(
        main.get_by_role("region", name="Throughput, jobs per minute").get_by_role("table")
    ).to_be_visible()
    axe(page)
    screenshot(page, "operations")


def test_a_visitor_without_a_key_sees_no_operations(keyed_page: Page) -> None:
    keyed_page.goto("/ops")
    expect(keyed_page.get_by_role("heading", level=1)).to_be_attached()
    expect(keyed_page.get_by_text("All well")).to_have_count(0)
