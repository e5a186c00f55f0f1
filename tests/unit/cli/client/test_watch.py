"""Live progress of jobs on a server."""

import asyncio
import io
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest

from diffuserve.cli.client.watch import JobBars, advanced, follow, state_of
from diffuserve.cli.display.console import Console
from diffuserve.client.codec import encode
from diffuserve.domain.jobs.job import JobStatus, Phase
from diffuserve.domain.resources.job import (
    ErrorResource,
    JobResource,
    ProgressResource,
    QueueResource,
)
from diffuserve.sdk.async_client import AsyncClient
from support.resources import make_event, make_job, server_sent

JOB = make_job(
    input={"prompt": "a [red] star", "width": 64, "height": 32, "num_inference_steps": 4},
    created_at="2026-01-02T12:00:00.000Z",
)


@pytest.mark.parametrize(
    ("job", "state"),
    [
        (JOB, "queued"),
        (replace(JOB, queue=QueueResource(3, 4.2, 9.6)), "queued, 3 ahead, 4–10 s"),
        (replace(JOB, queue=QueueResource(0, 0.22, 0.61)), "queued, next, 0.2–0.6 s"),
        (
            replace(JOB, queue=QueueResource(0, None, None, "no worker is there")),
            "queued, next, no worker is there",
        ),
        (replace(JOB, status=JobStatus.RUNNING), "running"),
        (replace(JOB, status=JobStatus.RUNNING, phase=Phase.ENCODE), "encode"),
        (
            replace(
                JOB,
                status=JobStatus.RUNNING,
                phase=Phase.DENOISE,
                progress=ProgressResource(step=3, total=8, fraction=0.375),
            ),
            "step 3/8",
        ),
        (
            replace(
                JOB,
                status=JobStatus.RUNNING,
                phase=Phase.DECODE,
                progress=ProgressResource(step=8, total=8, fraction=1.0, frames=5, num_frames=17),
            ),
            "decoding 5/17 frames",
        ),
        (replace(JOB, status=JobStatus.CANCELING, phase=Phase.DENOISE), "canceling"),
        (replace(JOB, status=JobStatus.FAILED), "failed"),
    ],
)
def test_the_state_of_a_job_is_described_in_a_few_words(job: JobResource, state: str) -> None:
    assert state_of(job) == state


def test_progress_takes_a_job_out_of_the_queue() -> None:
    queued = replace(JOB, queue=QueueResource(1, 1, 2))
    job = advanced(queued, {"phase": "denoise", "step": 1, "total": 4, "fraction": 0.25})
    assert (job.status, job.queue, job.progress) == (
        JobStatus.RUNNING,
        None,
        ProgressResource(step=1, total=4, fraction=0.25),
    )


def test_progress_bars_show_prompts_without_markup() -> None:
    screen = io.StringIO()
    with JobBars(Console(file=screen, width=120)) as bars:
        for status in (JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.SUCCEEDED):
            bars.show(replace(JOB, status=status))
    assert "a [red] star" in screen.getvalue()
    assert "succeeded" in screen.getvalue()


async def test_following_shows_each_change_and_returns_the_final_job() -> None:
    final = replace(JOB, status=JobStatus.FAILED, error=ErrorResource("boom", "it broke", safety={}))
    stream = server_sent(
        make_event("queued", 1),
        make_event("progress", phase="denoise", step=2, total=4),
        make_event("progress", phase="decode", step=4, total=4, frames=5, num_frames=17),
        make_event("failed", 2),
    )

    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/events"):
            return httpx.Response(200, content=stream, headers={"content-type": "text/event-stream"})
        return httpx.Response(200, content=encode(final))

    shown: list[str] = []
    async with AsyncClient("http://server", transport=httpx.MockTransport(handler)) as client:
        ended = await follow(client, JOB, lambda job: shown.append(state_of(job)))
    assert ended == final
    assert shown == ["queued", "step 2/4", "decoding 5/17 frames", "failed"]


async def test_a_queued_job_shows_its_place_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue moves without events of this job, so its place is polled until the job runs."""
    monkeypatch.setattr("diffuserve.cli.client.watch._QUEUE_PERIOD_SECONDS", 0.0)
    waiting = [replace(JOB, queue=QueueResource(ahead, 1, 2)) for ahead in (2, 1, 0)]
    final = replace(JOB, status=JobStatus.SUCCEEDED)
    states = iter([*waiting, final])
    shown: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/events"):
            return httpx.Response(200, content=encode(next(states, final)))
        headers = {"content-type": "text/event-stream"}
        return httpx.Response(200, stream=UntilShown(shown, num_shown=5), headers=headers)

    async with AsyncClient("http://server", transport=httpx.MockTransport(handler)) as client:
        await follow(client, JOB, lambda job: shown.append(state_of(job)))
    assert shown[0] == "queued"
    assert [state.split(",")[1].strip() for state in shown[1:4]] == ["2 ahead", "1 ahead", "next"]
    assert shown[-1] == "succeeded"


class UntilShown(httpx.AsyncByteStream):
    """Events that end once so many states were shown."""

    def __init__(self, shown: list[str], num_shown: int) -> None:
        self._shown, self._num_shown = shown, num_shown

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield server_sent(make_event("queued", 1))
        while len(self._shown) < self._num_shown - 1:
            await asyncio.sleep(0)
        yield server_sent(make_event("succeeded", 2))


def test_a_job_that_no_worker_can_run_is_warned_of_once() -> None:
    output = io.StringIO()
    stuck = replace(JOB, queue=QueueResource(0, None, None, "no worker serves tiny at present"))
    with JobBars(Console(file=output, width=40)) as bars:
        bars.show(stuck)
        bars.show(stuck)
        bars.show(replace(JOB, status=JobStatus.RUNNING))
    assert output.getvalue().count("no worker serves tiny at present; it waits") == 1
