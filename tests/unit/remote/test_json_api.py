"""The client of JSON APIs, over a transport in this process."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

import httpx
import pytest

from diffuserve.domain.errors import InvalidParams
from diffuserve.remote.json_api import JsonApi, JsonApiConfig, RemoteCallFailed, RemoteCallTimedOut

CONFIG = JsonApiConfig(url_setting="expander_url", url="http://host", path="/calls", key="secret")
Handler = Callable[[httpx.Request], httpx.Response]


async def post(handler: Handler, config: JsonApiConfig = CONFIG) -> bytes:
    api = JsonApi(config, httpx.MockTransport(handler))
    try:
        return await api.post({"text": "ü"})
    finally:
        await api.close()


def response(content: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> httpx.Response:
    """Return a response that is not read yet, as a network transport does."""
    return httpx.Response(status, stream=httpx.ByteStream(content), headers=headers)


def respond(content: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Handler:
    return lambda request: response(content, status, headers)


async def test_a_call_sends_json_with_the_key_and_returns_the_content() -> None:
    requests: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return response(b"[1]")

    assert await post(handler) == b"[1]"
    [request] = requests
    assert (request.method, str(request.url)) == ("POST", "http://host/v1/calls")
    assert request.content == '{"text":"ü"}'.encode()
    assert request.headers["authorization"] == "Bearer secret"
    assert request.headers["accept-encoding"] == "identity"


async def test_without_a_key_no_authorization_is_sent() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        assert "authorization" not in request.headers
        return response(b"")

    assert await post(handler, replace(CONFIG, key=None)) == b""


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (respond(b"secret", 500), "^responded with 500$"),
        (respond(b"", 307, {"location": "http://elsewhere"}), "redirects are not followed"),
        (respond(b"", headers={"content-encoding": "gzip"}), "compressed"),
        (respond(b"x" * 300_000), "more than 262,144 bytes"),
    ],
)
async def test_invalid_responses_raise_an_error_that_does_not_quote_them(
    handler: Handler, message: str
) -> None:
    with pytest.raises(RemoteCallFailed, match=message) as error:
        await post(handler)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("error", [httpx.ReadError("reset"), httpx.RemoteProtocolError("closed")])
async def test_a_broken_connection_is_retried_once(error: Exception) -> None:
    failures = [error]

    def handler(request: httpx.Request) -> httpx.Response:
        if failures:
            raise failures.pop()
        return response(b"again")

    assert await post(handler) == b"again"


async def test_a_connection_that_breaks_twice_raises_an_error() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(RemoteCallFailed, match=r"cannot be reached \(ConnectError\)"):
        await post(handler)


async def test_a_call_without_a_response_times_out() -> None:
    class Silent(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

    api = JsonApi(replace(CONFIG, timeout_seconds=0.01), Silent())
    with pytest.raises(RemoteCallTimedOut, match=r"did not respond within 0\.01 s"):
        await api.post({})
    await api.close()


@pytest.mark.parametrize(
    "base", ["http://h", "http://h/", "http://h/v1", "http://h/v1/", "http://h/v1/calls"]
)
def test_the_call_url_has_version_and_path_once(base: str) -> None:
    assert replace(CONFIG, url=base).call_url == "http://h/v1/calls"


@pytest.mark.parametrize(
    ("field", "value", "setting"),
    [
        ("url", "ftp://h", "expander_url"),
        ("url", "http://", "expander_url"),
        ("url", "http://h:99999", "expander_url"),
        ("url", "http://me:secret@h", "expander_url"),
        ("url", "http://h?key=1", "expander_url"),
        ("key", "secret\n", "expander_key"),
        ("timeout_seconds", 0.0, "expander_timeout_seconds"),
        ("timeout_seconds", float("inf"), "expander_timeout_seconds"),
    ],
)
def test_invalid_values_name_their_setting_and_show_no_secret(
    field: str, value: object, setting: str
) -> None:
    with pytest.raises(InvalidParams) as error:
        replace(CONFIG, **{field: value})  # type: ignore[arg-type]
    assert error.value.field == setting
    assert "secret" not in str(error.value)


def test_the_key_is_not_in_the_representation() -> None:
    assert "secret" not in repr(CONFIG)
