"""The operators' view in a real browser: what it shows, what it does, and that it stays true."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from diffuserve.domain.jobs.webhook import DeliveryAttempt
from diffuserve.settings import Settings
from support.browser import Axe, KeyedServer, OpenPage, Screenshot, assert_fits
from support.clips import CLIPS
from support.hand_page import Hand
from support.server_thread import ServerThread
from support.waiting import block_until

COUNT_COLORED = """(canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return data.filter((level, place) => place % 4 === 0 && Math.abs(level - data[place + 2]) > 60).length;
}"""
MAX_MUTATIONS = 200  # for one job more; to draw the view anew takes thousands
COUNT_MUTATIONS = """() => {
  window.mutations = 0;
  const count = (records) => { window.mutations += records.length; };
  new MutationObserver(count).observe(document.querySelector("main"),
    { childList: true, subtree: true, characterData: true, attributes: true });
}"""


def figure(page: Page, title: str) -> Locator:
    return page.locator("figure").filter(has=page.get_by_role("heading", name=title))


def section(page: Page, title: str) -> Locator:
    return page.get_by_role("region", name=title)


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


def test_a_tenant_is_told_that_an_operators_key_is_needed(
    keyed_page: Page, keyed_server: KeyedServer
) -> None:
    keyed_page.goto("/ops")
    key = keyed_page.get_by_label("API key")
    expect(key).to_be_visible()
    expect(keyed_page.get_by_text("All well")).to_have_count(0)
    key.fill(keyed_server.tenant_key)
    keyed_page.get_by_role("button", name="Sign in").click()
    expect(keyed_page.get_by_text("needs an operator's key")).to_be_visible()


def test_jobs_are_canceled_and_workers_drained_from_the_page(
    hand: Hand, open_page: OpenPage, axe: Axe, screenshot: Screenshot
) -> None:
    page = open_page(hand.address, dark=True)
    page.goto("/ops")
    first, _ = hand.submit("a star"), hand.submit("a ring")
    expect(page.get_by_text("2 jobs wait").first).to_be_visible()
    assert hand.claim().job_id == first
    running = section(page, "Running jobs")
    expect(running.get_by_role("button")).to_have_count(1)
    axe(page)
    screenshot(page, "operations_dark")
    running.get_by_role("button", name=f"Cancel {first}").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
    expect(running.get_by_text("canceling")).to_be_visible()
    workers = section(page, "Workers")
    workers.get_by_role("button", name="Drain").first.click()
    page.get_by_role("dialog").get_by_role("button", name="Drain the worker").click()
    expect(workers.get_by_role("row").filter(has_text="draining")).to_be_visible()


def test_what_fails_is_mended_from_a_phone(
    hand: Hand, open_page: OpenPage, axe: Axe, screenshot: Screenshot
) -> None:
    """Queue a failed job again, enable a webhook, cancel a job of a tenant."""
    page = open_page(hand.address, phone=True)
    page.goto("/ops")
    url = f"https://hooks.example.com/{'a-long-path/' * 5}"
    job_id = hand.submit("a green triangle", webhook={"url": url})
    hand.does(hand.worker.fail(hand.claim(), "numbers_broke")).raise_for_status()
    [endpoint] = hand.does(hand.store.webhooks.endpoints())
    [delivery] = hand.does(hand.store.webhooks.deliveries(endpoint.id))
    hand.does(hand.store.webhooks.record(DeliveryAttempt(delivery.id, 410, "responded 410")))
    failures, webhooks = section(page, "Failures in the last hour"), section(page, "Webhooks that fail")
    expect(failures.get_by_text("numbers_broke", exact=True)).to_be_visible()
    disabled = webhooks.get_by_text("Disabled:")  # the server's own attempt may have failed since
    expect(disabled).to_be_visible()
    waiting = hand.submit("a tenant's own star")
    section(page, "Queue").get_by_role("button", name="default").click()
    jobs = page.get_by_role("region", name="Jobs of default")
    expect(jobs.get_by_text("a tenant's own star")).to_be_visible()
    axe(page)
    assert_fits(page)
    screenshot(page, "operations_phone")

    webhooks.get_by_role("button", name="Enable").click()
    expect(disabled).to_have_count(0)
    assert hand.does(hand.store.webhooks.endpoints())[0].disabled_at is None
    jobs.get_by_role("button", name=f"Cancel {waiting}").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
    expect(jobs.get_by_text("canceled")).to_be_visible()
    failures.get_by_role("button", name="Requeue the example of numbers_broke").click()
    expect(failures.get_by_text("numbers_broke", exact=True)).to_have_count(0)
    assert hand.claim().job_id == job_id


def test_workers_are_sorted_and_filtered(hand: Hand, open_page: OpenPage) -> None:
    others = [hand.register(name, CLIPS) for name in ("alpha-10", "alpha-2")]
    hand.does(others[0].beat("initializing"))
    page = open_page(hand.address)
    page.goto("/ops")
    workers = section(page, "Workers")
    names = workers.get_by_role("rowheader")
    expect(names).to_have_text(["alpha-10", "alpha-2", "by hand"])  # what needs a look first
    header = workers.get_by_role("columnheader", name="Worker")
    header.get_by_role("button").click()
    expect(header).to_have_attribute("aria-sort", "ascending")
    expect(names).to_have_text(["alpha-2", "alpha-10", "by hand"])
    header.get_by_role("button").click()
    expect(header).to_have_attribute("aria-sort", "descending")
    expect(names).to_have_text(["by hand", "alpha-10", "alpha-2"])
    workers.get_by_label("State").select_option("initializing (1)")
    expect(names).to_have_text(["alpha-10"])
    expect(workers.get_by_role("status")).to_have_text("1 of 3")
    workers.get_by_label("State").select_option("all")
    workers.get_by_label("Model").select_option("able")
    expect(names).to_have_text(["by hand"])
    workers.get_by_label("Name").fill("nobody")
    expect(workers.get_by_text("No worker matches the filter.")).to_be_visible()
    workers.get_by_label("Model").select_option("all")
    workers.get_by_label("Name").fill("ALPHA")
    expect(names).to_have_text(["alpha-10", "alpha-2"])
    for worker in others:
        hand.does(worker.deregister())


def test_the_clock_of_a_chart_does_not_repeat_itself(open_page: OpenPage, hand: Hand) -> None:
    """Ask the module what it does with a single point, and with values between gaps."""
    page = open_page(hand.address)
    page.goto("/ops")
    script = """async () => {
      const main = document.querySelector("script[type=module]").src;
      const { timeRange, lonely } = await import(new URL("views/operations/plot.js", main));
      return [timeRange(7200, 7200), timeRange(3600, 7200), lonely([1, null, 2, 3]), lonely([1, 2])];
    }"""
    assert page.evaluate(script) == [[6600, 7200], [3600, 7200], [0], None]


def test_what_did_not_change_is_not_drawn_again(hand: Hand, open_page: OpenPage) -> None:
    page = open_page(hand.address)
    page.goto("/ops")
    expect(section(page, "Workers").get_by_role("button", name="Drain").first).to_be_visible()
    page.evaluate(COUNT_MUTATIONS)
    hand.submit("a cross")
    expect(page.get_by_text("1 job waits").first).to_be_visible()
    assert 0 < page.evaluate("window.mutations") < MAX_MUTATIONS


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[ServerThread]:
    """A server that soon gives a silent worker up."""
    settings = Settings.with_options(data_dir=tmp_path / "data", port=0, lease_seconds=6, heartbeat_seconds=1)
    with ServerThread(settings, has_worker=False) as server:
        yield server


def test_a_killed_worker_is_lost_without_a_reload(
    impatient: ServerThread, open_page: OpenPage, tmp_path: Path
) -> None:
    engine = f"{sys.executable} -m diffuserve.testing.null_engine"
    command = [sys.executable, "-m", "diffuserve", "worker", "--server", impatient.address]
    with (tmp_path / "worker.log").open("w") as log:
        process = subprocess.Popen([*command, "--engine-command", engine], stderr=log, start_new_session=True)
    try:
        page = open_page(impatient.address)
        page.goto("/ops")
        expect(figure(page, "Latency").get_by_text("No values yet")).to_be_visible()
        expect(figure(page, "Latency").locator("canvas")).to_have_count(0)
        queue = figure(page, "Queue").locator("canvas")
        block_until(lambda: queue.evaluate(COUNT_COLORED) > 0)
        rows = section(page, "Workers").get_by_role("row")
        expect(rows.filter(has_text="ready")).to_be_visible()
        os.killpg(process.pid, signal.SIGKILL)
        expect(rows.filter(has_text="lost")).to_be_visible()
        expect(page.get_by_role("status").filter(has_text="no worker is ready")).to_be_visible()
    finally:
        process.kill()
        process.wait()
