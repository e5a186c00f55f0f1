"""Retries of requests, and errors that responses become."""

import asyncio
from collections.abc import Callable

import httpx
import pytest

from diffuserve.client.http import HttpTransport, RequestOptions
from diffuserve.domain.errors import (
    DeadlineUnreachable,
    DiffuserveError,
    Forbidden,
    InvalidParams,
    LeaseLost,
    ServerRefused,
    ServerUnavailable,
    StorageRefused,
)
from diffuserve.telemetry.outage_log import OutageLog
from support.virtual_time import in_virtual_time, now
from support.waiting import HANG_SECONDS

Handler = Callable[[httpx.Request], httpx.Response]


def transport(handler: Handler, patience_seconds: float = 5.0) -> HttpTransport:
    return HttpTransport(
        "http://server", patience_seconds=patience_seconds, transport=httpx.MockTransport(handler)
    )


def responses(*given: httpx.Response | Exception) -> Handler:
    remaining = iter(given)

    def handler(_request: httpx.Request) -> httpx.Response:
        response = next(remaining)
        if isinstance(response, Exception):
            raise response
        return response

    return handler


@pytest.mark.parametrize(
    "failure",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("too slow"),
        httpx.RemoteProtocolError("disconnected"),
        httpx.Response(503),
        httpx.Response(502, text="<html>"),
        httpx.Response(503, headers={"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}),
    ],
)
async def test_a_request_is_retried_while_the_server_is_unavailable(
    failure: httpx.Response | Exception,
) -> None:
    http = transport(responses(failure, httpx.Response(200, text="back")))
    assert (await http.request("GET", "/v1/jobs")).text == "back"
    await http.close()


@in_virtual_time
async def test_a_retry_waits_as_long_as_the_server_asks() -> None:
    http = transport(responses(httpx.Response(503, headers={"retry-after": "0.4"}), httpx.Response(200)))
    await http.request("GET", "/v1/jobs")
    assert 0.2 <= now() <= 0.4
    await http.close()


async def test_a_pause_longer_than_the_patience_left_ends_it_at_once() -> None:
    problem = {"code": "backlog_full", "detail": "too much work waits"}
    busy = httpx.Response(503, json=problem, headers={"retry-after": "600"})
    http = transport(responses(busy), patience_seconds=1.0)
    async with asyncio.timeout(HANG_SECONDS):
        with pytest.raises(ServerUnavailable, match=r"503: too much work waits$"):
            await http.request("POST", "/v1/jobs")
    await http.close()


async def test_a_long_poll_has_a_longer_timeout() -> None:
    timeouts: list[float] = []

    def handler(request: httpx.Request) -> httpx.Response:
        timeouts.append(request.extensions["timeout"]["read"])
        return httpx.Response(200)

    http = transport(handler)
    await http.request("GET", "/v1/jobs")
    await http.request("GET", "/v1/jobs", RequestOptions(wait_seconds=25.0))
    assert timeouts[1] == timeouts[0] + 25
    await http.close()


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        (403, {"code": "forbidden", "detail": "another door"}, Forbidden, "another door"),
        (409, {"code": "lease_lost", "detail": "gone", "job_id": "j1"}, LeaseLost, "gone"),
        (422, {"code": "invalid_params", "detail": "width=7"}, InvalidParams, "width=7"),
        (404, ["no problem"], ServerRefused, "404"),
        (400, {"code": "nix"}, ServerRefused, "400"),
    ],
)
async def test_an_error_response_is_raised_without_a_retry(
    status: int, body: object, error: type[DiffuserveError], message: str
) -> None:
    http = transport(responses(httpx.Response(status, json=body)))
    with pytest.raises(error, match=message) as raised:
        await http.request("GET", "/v1/jobs")
    assert type(raised.value) is error
    await http.close()


async def test_an_unreachable_server_is_named_with_what_the_system_said() -> None:
    http = HttpTransport("http://127.0.0.1:9", patience_seconds=0.0)
    told = r"^http://127\.0\.0\.1:9 does not respond \(Connection refused\)$"
    with pytest.raises(ServerUnavailable, match=told):
        await http.request("GET", "/v1/jobs")
    await http.close()


@pytest.mark.parametrize("error", [StorageRefused, DeadlineUnreachable])
async def test_what_no_retry_helps_is_not_tried_again(error: type[DiffuserveError]) -> None:
    problem = {"code": error.code, "detail": "in vain", "retryable": False}
    http = transport(responses(httpx.Response(503, json=problem)))
    with pytest.raises(error, match="in vain"):
        await http.request("PUT", "/v1/leases/job/files/0.png")
    await http.close()


async def test_a_worker_tries_again_what_the_artifact_store_refuses_which_is_no_outage_of_the_server() -> (
    None
):
    problem = {"code": "storage_refused", "detail": "no access", "retryable": False}
    refused, server = httpx.Response(503, json=problem), OutageLog("http://server")
    answers = httpx.MockTransport(responses(refused, refused, httpx.Response(200)))
    http = HttpTransport("http://server", transport=answers, outages=server, waits_for_storage=True)
    await http.request("POST", "/v1/leases/job/complete")
    assert http.storage.is_on
    assert not server.is_on
    await http.close()


async def test_a_web_page_is_not_repeated_in_an_error() -> None:
    page = httpx.Response(404, html="<html>\n<title>Nothing here</title>")
    http = transport(responses(page))
    with pytest.raises(ServerRefused, match=r"^http://server responded with 404: a web page$"):
        await http.request("GET", "/v1/jobs")
    await http.close()
