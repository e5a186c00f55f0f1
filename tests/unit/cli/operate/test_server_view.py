"""`diffuserve ps` and `top`: what a server does, for operators and for tenants."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from diffuserve.cli.client import connect
from diffuserve.cli.display.console import Console
from diffuserve.cli.operate.server_tables import models_of, workers_table
from diffuserve.cli.operate.server_view import ServerView, jobs_per_minute
from diffuserve.cli.operate.top import _look, screen_of
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.resources.job import JobResource
from diffuserve.domain.resources.worker import WorkerReportResource
from diffuserve.domain.tenant import Role
from diffuserve.domain.workers.worker import WorkerState
from diffuserve.sdk.async_client import AsyncClient
from diffuserve.settings import Settings
from support.command import Invoke
from support.resources import make_job, make_worker
from support.server_thread import ServerThread

NOON = 1_767_355_200.0  # 2026-01-02T12:00:00Z


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerThread]:
    with ServerThread(Settings(data_dir=tmp_path / "server", port=0, prompt_filter="none")) as server:
        monkeypatch.setenv("DIFFUSERVE_SERVER", server.address)
        yield server


def ended(*seconds_ago: int) -> list[JobResource]:
    """Return jobs that ended so many seconds before noon, at most 59."""
    times = [f"2026-01-02T11:59:{60 - seconds:02}.000Z" for seconds in seconds_ago]
    return [make_job(status=JobStatus.SUCCEEDED, finished_at=time) for time in times]


def test_the_table_says_why_a_worker_drains() -> None:
    report = WorkerReportResource(state=WorkerState.DRAINING, drain_reason="interruption notice of gcp")
    worker = make_worker(state=WorkerState.DRAINING, report=report)
    view = ServerView(server="http://s", now=NOON, models=(), jobs=(), jobs_per_minute=0.0, workers=(worker,))
    console = Console(width=200)
    with console.capture() as shown:
        console.print(workers_table(view))
    assert "draining: interruption notice of gcp" in shown.get()


@pytest.mark.parametrize(
    ("models", "resident", "shown"),
    [(("a",), (), "a"), (("a", "b", "c"), ("b",), "(a), b, (c)"), (("a", "b"), (), "(a), (b)")],
)
def test_of_several_models_those_that_are_not_in_memory_are_in_parentheses(
    models: tuple[str, ...], resident: tuple[str, ...], shown: str
) -> None:
    report = WorkerReportResource(state=WorkerState.READY, resident_models=resident)
    assert models_of(make_worker(models=models, report=report)) == shown


@pytest.mark.parametrize(
    ("seconds_ago", "is_all", "rate"),
    [((), True, 0.0), ((1, 30), True, 2.0), ((1, 5, 10), False, 18.0), ((1, 1), False, 120.0)],
)
def test_throughput_is_that_of_the_last_minute(
    seconds_ago: tuple[int, ...], is_all: bool, rate: float
) -> None:
    assert jobs_per_minute(ended(*seconds_ago), NOON, is_all=is_all) == pytest.approx(rate)
    assert jobs_per_minute(ended(*seconds_ago), NOON + 61.0, is_all=is_all) == 0.0


def test_an_open_server_shows_workers_jobs_and_queue(invoke: Invoke, server: ServerThread) -> None:
    submitted = invoke("submit", "wait").out
    view = json.loads(invoke("ps", "--json").out)
    while not view["jobs"] or sum(view["queue"].values()):  # until the worker has claimed it
        view = json.loads(invoke("ps", "--json").out)
    assert [job["id"] for job in view["jobs"]] == [submitted]
    assert [worker["name"] for worker in view["workers"]] == ["by hand"]
    assert (view["models"], view["refusal"]) == (["hand"], "")
    assert sum(view["queue"].values()) == 0

    for arguments in (["ps"], ["top"], ["top", "--once"]):
        outcome = invoke(*arguments)
        assert (outcome.code, outcome.err) == (0, "")
        totals = outcome.out.splitlines()[0]
        assert "workers: 1 ready · running: 1 · queued: 0" in totals
        assert "by hand" in outcome.out
        assert submitted in outcome.out
        assert "\x1b" not in outcome.out


def test_a_tenant_is_told_what_it_does_not_see(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(data_dir=tmp_path / "server", port=0, prompt_filter="none")
    with ServerThread(settings, has_worker=False) as server:
        monkeypatch.setenv("DIFFUSERVE_SERVER", server.address)
        _, secret = server.call(server.store.keys.create(Role.TENANT, tenant_id="studio"))
        outcome = invoke("ps", "--key", secret)
        while "workers:" in outcome.out:  # an open server notices its first key within a second
            outcome = invoke("ps", "--key", secret)
        assert outcome.code == 0
        assert "the API key is no operator's" in outcome.err
        assert "the API key is no operator's" in invoke("top", "--key", secret).out
        assert invoke("top", "--key", "dsk_wrong").code == 2


def test_a_look_at_a_server_that_is_away_keeps_the_last_view(server: ServerThread) -> None:
    async def look_twice() -> str:
        async with AsyncClient(server.address, patience_seconds=0.1) as client:
            view, problem = await _look(client, None)
        assert (view is not None, problem) == (True, "")
        async with AsyncClient("http://127.0.0.1:1", patience_seconds=0.1) as away:
            last, problem = await _look(away, view)
            assert last is view
        console = Console(width=500)
        with console.capture() as capture:
            console.print(screen_of(last, problem))
        return capture.get()

    screen = asyncio.run(look_twice())
    assert server.address in screen
    assert "http://127.0.0.1:1 does not respond" in screen
    assert "trying again" in screen


def test_a_server_that_is_away_is_one_clear_line(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "PATIENCE_SECONDS", 0.1)
    outcome = invoke("top", "--once", "--server", "http://127.0.0.1:1")
    assert outcome.code == 1
    assert len(outcome.err.splitlines()) == 1
