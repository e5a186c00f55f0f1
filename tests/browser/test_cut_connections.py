"""A proxy that dies in the middle of a response: what was asked is done, and the page finds it."""

import pytest
from playwright.sync_api import expect

from support.browser import OpenPage, Watcher
from support.faulty_proxy import CutResponse, Fault, FaultyProxy
from support.hand_page import Hand, newest

SUBMITS = ("POST", "/v1/jobs")


class CutsSubmissions(FaultyProxy):
    """Cuts the responses to the first submissions of jobs."""

    num_left = 1

    def next_fault(self, method: str, path: str) -> Fault | None:
        fault = super().next_fault(method, path)
        if (method, path) != SUBMITS or not self.num_left:
            return fault
        self.num_left -= 1
        return CutResponse()


@pytest.mark.parametrize("num_cut", [1, 2])
def test_a_cut_response_is_told_as_such_and_the_job_is_found_again(
    open_page: OpenPage, hand: Hand, watchers: list[Watcher], num_cut: int
) -> None:
    jobs = hand.store.jobs
    before = len(hand.does(jobs.list_jobs(limit=200)))
    with CutsSubmissions(hand.address) as proxy:
        proxy.num_left = num_cut
        page = open_page(proxy.url)
        watchers[-1].allow("net::ERR")
        page.goto("/?prompt=a+star&model=able")
        expect(page.get_by_text("Ready", exact=True)).to_be_visible()
        page.get_by_role("button", name="Generate").click()
        if num_cut > 1:
            expect(page.get_by_text("The connection was cut before all of the response")).to_be_visible()
        hand.complete()
        if num_cut == 1:
            expect(newest(page).get_by_role("status")).to_contain_text("Done")
        assert proxy.requests.count(SUBMITS) == 2
        page.goto("about:blank")
    assert len(hand.does(jobs.list_jobs(limit=200))) == before + 1
