"""The client against a server that a function simulates."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import httpx
import orjson
import pytest

from diffuserve.domain.errors import InvalidParams, JobNotFound, QueueFull, ServerUnavailable
from diffuserve.domain.jobs.job import Band, JobStatus
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.resources.file import FileResource
from diffuserve.domain.resources.job import EventResource, JobPage
from diffuserve.sdk.async_client import AsyncClient
from support.resources import make_event, make_job, server_sent

Handler = Callable[[httpx.Request], httpx.Response]
QUEUED, RUNNING, SUCCEEDED = (
    make_event(status, seq) for seq, status in enumerate(("queued", "running", "succeeded"), 1)
)
PROGRESS = make_event("progress")
UPLOADED = FileResource(
    id="file-1",
    filename="image",
    content_type="image/png",
    bytes=7,
    width=1,
    height=1,
    sha256="00",
    verdict=None,
    created_at=0,
    expires_at=1,
)
STAR = GenerationParams(prompt="a star", width=64, height=64, seed=3)


def client(handler: Handler, patience_seconds: float = 5.0) -> AsyncClient:
    transport = httpx.MockTransport(handler)
    return AsyncClient("http://server/", "key", patience_seconds=patience_seconds, transport=transport)


def job(status: JobStatus = JobStatus.QUEUED) -> bytes:
    """Return a job as a newer server would write it."""
    return orjson.dumps({**vars(make_job(status=status)), "field_of_a_newer_server": 1})


def problem(status: int, code: str, detail: str) -> httpx.Response:
    content = {"code": code, "detail": detail, "status": status}
    return httpx.Response(status, json=content, headers={"content-type": "application/problem+json"})


async def test_a_submission_has_the_fields_that_are_set_and_an_idempotency_key() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(202, content=job())

    async with client(handler) as http:
        accepted = await http.submit(STAR, priority=Band.BATCH, metadata={"n": 1})
        await http.submit(STAR)
    assert (accepted.id, accepted.status) == ("j1", JobStatus.QUEUED)
    body = json.loads(seen[0].content)
    assert body == {
        "input": {"prompt": "a star", "width": 64, "height": 64, "seed": 3, "num_images": 1},
        "priority": "batch",
        "metadata": {"n": 1},
    }
    assert seen[0].headers["authorization"] == "Bearer key"
    keys = [request.headers["idempotency-key"] for request in seen]
    assert keys[0] != keys[1], "two submissions are two jobs"


async def test_images_of_a_program_are_uploaded_once_for_jobs_and_batches(tmp_path: Path) -> None:
    (path := tmp_path / "star.png").write_bytes(b"a path")
    uploads: list[bytes] = []
    submitted: list[bytes] = []

    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path != "/v1/files":
            submitted.append(request.content)
            return problem(422, "invalid_params", "what is submitted is looked at here, not made")
        uploads.append(request.content)
        return httpx.Response(200, content=orjson.dumps(replace(UPLOADED, id=f"file-{len(uploads)}")))

    file = io.BytesIO(b"a file")
    file.seek(0, io.SEEK_END)  # as whoever has just written it leaves it
    items = [
        {"custom_id": "1", "input": {"prompt": "a star", "image": image}} for image in (path, path, file)
    ]
    async with client(handler) as http:
        for submission in (http.submit("a star", image=b"bytes"), http.batches.submit(items)):
            with pytest.raises(InvalidParams):
                await submission
    assert uploads == [b"bytes", b"a path", b"a file"]
    assert json.loads(submitted[0])["input"]["image"] == "file-1"
    images = [json.loads(line)["input"]["image"] for line in submitted[1].splitlines()]
    assert images == ["file-2", "file-2", "file-3"]


async def test_a_submission_whose_response_is_lost_is_retried_with_the_same_key() -> None:
    keys: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["idempotency-key"])
        if len(keys) == 1:
            raise httpx.ReadError("connection reset")
        return httpx.Response(202, content=job())

    async with client(handler) as http:
        await http.submit(STAR)
    assert len(keys) == 2
    assert keys[0] == keys[1]


async def test_an_unreachable_server_is_named_in_the_error() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused")

    async with client(handler, patience_seconds=0.2) as http:
        with pytest.raises(ServerUnavailable, match="http://server does not respond"):
            await http.get("j1")


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (problem(404, "job_not_found", "no job j1"), JobNotFound),
        (problem(429, "queue_full", "100 jobs are queued"), QueueFull),
    ],
)
async def test_an_error_response_is_raised_as_the_error_of_its_code(
    response: httpx.Response, error: type[Exception]
) -> None:
    async with client(lambda _request: response) as http:
        with pytest.raises(error, match=r"j1|queued"):
            await http.get("j1")


async def test_a_wait_polls_until_the_job_is_final() -> None:
    statuses = iter([JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.SUCCEEDED])

    def handler(request: httpx.Request) -> httpx.Response:
        assert float(request.url.params["wait"]) > 1, "a long-poll, not a busy loop"
        return httpx.Response(200, content=job(next(statuses)))

    async with client(handler) as http:
        assert (await http.wait("j1")).status is JobStatus.SUCCEEDED
    assert next(statuses, None) is None


async def test_a_wait_raises_after_its_timeout() -> None:
    async def never(_request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError("never answered")

    async with AsyncClient("http://server", transport=httpx.MockTransport(never)) as http:
        with pytest.raises(TimeoutError, match=r"j1 took more than 0.05 s"):
            await http.wait("j1", max_seconds=0.05)


@pytest.mark.parametrize("stage", ["/v1/jobs", "/v1/jobs/j1"])
async def test_a_call_that_is_canceled_cancels_its_job(stage: str) -> None:
    reached, go_on, canceled = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path == stage:
            reached.set()
            await go_on.wait()
        if request.url.path.endswith("/cancel"):
            canceled.set()
        return httpx.Response(200, content=job())

    async with AsyncClient("http://server", transport=httpx.MockTransport(handler)) as http:
        call = asyncio.create_task(http.generate(STAR))
        await reached.wait()
        call.cancel()
        asyncio.get_running_loop().call_soon(go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await call
    assert canceled.is_set()


async def test_a_call_that_takes_too_long_says_whether_its_job_was_canceled() -> None:
    async def handler(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0.01)
        is_refused = request.url.path.endswith("/cancel")
        return problem(404, "job_not_found", "no job") if is_refused else httpx.Response(200, content=job())

    async with AsyncClient("http://server", transport=httpx.MockTransport(handler)) as http:
        with pytest.raises(TimeoutError, match=r"j1 took more than 0.05 s; it could not be canceled"):
            await http.generate(STAR, max_seconds=0.05)


async def test_a_listing_has_filters_and_pages() -> None:
    page = JobPage(data=(make_job(),), has_more=True, next="j1")

    def handler(request: httpx.Request) -> httpx.Response:
        assert request.url.params.get_list("status") == ["queued", "running"]
        assert request.url.params["after"] == "j9"
        return httpx.Response(200, content=orjson.dumps(page))

    async with client(handler) as http:
        assert await http.list_jobs([JobStatus.QUEUED, JobStatus.RUNNING], after="j9") == page


async def collect(events: AsyncIterator[EventResource]) -> list[str]:
    return [event.type async for event in events]


async def test_events_end_with_the_final_one() -> None:
    content = server_sent(QUEUED, RUNNING, PROGRESS, SUCCEEDED, make_event("never seen", 4))

    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=content, headers={"content-type": "text/event-stream"})

    async with client(handler) as http:
        assert await collect(http.stream("j1")) == ["queued", "running", "progress", "succeeded"]


async def test_pings_between_events_are_skipped() -> None:
    content = b": ping\r\n\r\n".join(server_sent(event) for event in (QUEUED, RUNNING, SUCCEEDED))

    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=content, headers={"content-type": "text/event-stream"})

    async with client(handler) as http:
        assert await collect(http.stream("j1")) == ["queued", "running", "succeeded"]


async def test_a_broken_stream_of_events_resumes_where_it_ended() -> None:
    last_event_ids: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        last_event_ids.append(request.headers["last-event-id"])
        if len(last_event_ids) == 2:
            raise httpx.ConnectError("the server starts again")
        content = (
            server_sent(QUEUED, RUNNING, PROGRESS) if len(last_event_ids) == 1 else server_sent(SUCCEEDED)
        )
        return httpx.Response(200, content=content, headers={"content-type": "text/event-stream"})

    async with client(handler) as http:
        assert await collect(http.stream("j1")) == ["queued", "running", "progress", "succeeded"]
    assert last_event_ids == ["0", "2", "2"]


async def test_events_of_an_unreachable_server_end_with_an_error() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused")

    async with client(handler, patience_seconds=0.1) as http:
        with pytest.raises(ServerUnavailable):
            await collect(http.stream("j1"))


async def test_an_image_is_downloaded_whole_or_not_at_all(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"half a "
        raise httpx.ReadError("connection reset")

    def handler(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/jobs/j1/result"
        is_first = request.url.params["index"] == "0"
        return httpx.Response(200, content=b"an image" if is_first else broken())

    async with client(handler, patience_seconds=0.1) as http:
        await http.download("j1", 0, str(tmp_path / "star.png"))
        with pytest.raises(ServerUnavailable):
            await http.download("j1", 1, tmp_path / "other.png")
    assert [path.name for path in tmp_path.iterdir()] == ["star.png"]
    assert (tmp_path / "star.png").read_bytes() == b"an image"


async def test_a_failed_download_leaves_no_file(tmp_path: Path) -> None:
    async with client(lambda _request: problem(404, "job_not_found", "no job j1")) as http:
        with pytest.raises(JobNotFound):
            await http.download("j1", 0, tmp_path / "star.png")
    assert list(tmp_path.iterdir()) == []
