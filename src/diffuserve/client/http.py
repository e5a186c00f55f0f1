"""HTTP requests to the control plane, retried while it is unavailable."""

import os
import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from diffuserve.backoff import Backoff, retry
from diffuserve.client.errors import error_of
from diffuserve.domain.errors import (
    ArtifactNotFound,
    DiffuserveError,
    Refused,
    ServerRefused,
    ServerUnavailable,
    StorageAway,
    StorageRefused,
)
from diffuserve.telemetry import tracing
from diffuserve.telemetry.outage_log import OutageLog, each_minute

T = TypeVar("T")

_RETRIED_STATUSES = frozenset({408, 425, 500, 502, 503, 504})
_STORE_REFUSALS = frozenset({401, 403, 404})  # a bucket's answers about any file: no such bucket, no access
_BACKOFF = Backoff(first_seconds=0.1, longest_seconds=5.0, jitter=0.5)
_STREAM_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
_MAX_DETAIL_CHARACTERS = 200
_MAX_CONTENT_BYTES = 64 << 20  # of what is read at once; files are streamed
_FRAMING = frozenset({"content-encoding", "content-length", "transfer-encoding"})
_NO_BUCKET = "NoSuchBucket"
_BUCKET_ERROR = re.compile(r"<Code>([^<]+)</Code>.*?<Message>([^<]+)</Message>", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """Parts of a request that most requests do without.

    `wait_seconds` is how long the server may delay the response to a long poll. `patience_seconds` is how
    long the request is retried; `None` stands for the transport's own.
    """

    json: Any = None
    content: bytes | AsyncIterable[bytes] | None = None
    params: Mapping[str, Any] | None = None
    headers: Mapping[str, str] | None = None
    wait_seconds: float = 0.0
    patience_seconds: float | None = None


NO_OPTIONS = RequestOptions()


class HttpTransport:
    """JSON over HTTP with exponential backoff and jitter.

    A request is retried for up to `patience_seconds` while the server is unreachable, overloaded or asks to
    wait; every route is safe to repeat. An error response is raised as the `DiffuserveError` with its `code`.
    """

    def __init__(  # noqa: PLR0913 (each has a default of its own)
        self,
        server: str,
        api_key: str | None = None,
        *,
        patience_seconds: float = 30.0,
        timeout_seconds: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
        auth: httpx.Auth | None = None,
        outages: OutageLog | None = None,
        waits_for_storage: bool = False,
    ) -> None:
        """Connect with `api_key`, or with what `auth` adds to each request to the server.

        `outages` is notified of every attempt to reach the server. With `waits_for_storage` a request is
        retried also while the server's artifact store refuses access, of which `storage` is told.
        """
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self.server = server.rstrip("/").removesuffix("/v1")  # as OpenAI's clients have it
        self.patience_seconds = patience_seconds
        self.storage = OutageLog("the artifact store", reminders=each_minute)
        self._outages = outages
        self._waits_for_storage = waits_for_storage
        self._client = httpx.AsyncClient(
            base_url=self.server,
            headers=headers,
            auth=auth,
            timeout=httpx.Timeout(timeout_seconds, connect=5.0),
            transport=transport,
            trust_env=False,  # a proxy meant for the internet would see every key
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    async def request(self, method: str, path: str, options: RequestOptions = NO_OPTIONS) -> httpx.Response:
        """Return the response. Raise `ServerUnavailable` when patience ends, or the response's error."""
        request = self._client.build_request(
            method,
            path,
            json=options.json,
            content=options.content,
            params=options.params,
            headers=options.headers,
        )
        if (trace := tracing.current()) is not None:
            request.headers["traceparent"] = str(trace)
        request.extensions["timeout"]["read"] += options.wait_seconds
        return await self.retried(lambda: self._send(request), options.patience_seconds)

    async def retried(self, work: Callable[[], Awaitable[T]], patience_seconds: float | None = None) -> T:
        """Return what `work` returns, which is done again as a request is."""
        seconds = self.patience_seconds if patience_seconds is None else patience_seconds
        return await retry(lambda _attempt: work(), self._pause, _BACKOFF, seconds)

    def _pause(self, error: Exception) -> float | None:
        if self._waits_for_storage and isinstance(error, StorageAway):
            self.storage.failed(str(error))
            return error.retry_after
        return pause_before_retry(error)

    async def put_external(
        self, url: str, content: bytes, headers: Mapping[str, str], patience_seconds: float
    ) -> None:
        """Upload to a bucket, without the API key. Raise as `request` does, and `StorageRefused`."""
        timeout = {"timeout": self._client.timeout.as_dict()}
        request = httpx.Request("PUT", url, content=content, headers=headers, extensions=timeout)

        async def send(_attempt: int) -> None:
            await self._send_once(request, auth=None, error_of=_bucket_error)

        await retry(send, pause_before_retry, _BACKOFF, patience_seconds)

    @asynccontextmanager
    async def stream(
        self, path: str, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[httpx.Response]:
        """Open a response of unknown length, such as events or a file; it is not retried.

        Raise `ServerUnavailable`, also when the connection breaks within the block, or the response's error.
        """
        options: dict[str, Any] = {"timeout": _STREAM_TIMEOUT, "follow_redirects": True}
        try:
            async with self._client.stream("GET", path, headers=headers, **options) as response:
                await _raise_for_status(response)
                yield response
        except httpx.TransportError as error:
            raise ServerUnavailable(f"{self.server} does not respond ({error!r})") from error

    @asynccontextmanager
    async def stream_external(self, url: str) -> AsyncIterator[httpx.Response]:
        """Open a file in a bucket, without the API key.

        Raise as `stream`, `ArtifactNotFound`, or `StorageRefused`.
        """
        request = httpx.Request("GET", url, extensions={"timeout": _STREAM_TIMEOUT.as_dict()})
        try:
            response = await self._client.send(request, auth=None, stream=True)
            async with aclosing(response):
                await _raise_if_missing(response)
                await _raise_for_status(response, _bucket_error)
                yield response
        except httpx.TransportError as error:
            raise ServerUnavailable(f"{_server_of(request)} does not respond ({_reason(error)})") from error

    async def _send(self, request: httpx.Request) -> httpx.Response:
        """Send a request to the server once, and note whether it is there."""
        try:
            response = await self._send_once(request, httpx.USE_CLIENT_DEFAULT)
        except DiffuserveError as error:
            if self._outages is not None:
                self._outages.note(error)
            raise
        if self._outages is not None:
            self._outages.note(None)
        return response

    async def _send_once(
        self,
        request: httpx.Request,
        auth: Any,
        error_of: Callable[[httpx.Response], DiffuserveError] | None = None,
    ) -> httpx.Response:
        """Send the request once. Raise `ServerUnavailable` for a failure that a retry may help."""
        try:
            async with aclosing(await self._client.send(request, auth=auth, stream=True)) as begun:
                response = await _read(begun)
        except httpx.TransportError as error:
            raise ServerUnavailable(f"{_server_of(request)} does not respond ({_reason(error)})") from error
        if response.status_code in _RETRIED_STATUSES and not _is_final(response):
            raise _away(response)
        if response.is_error:
            raise (error_of or error_from)(response)
        return response


async def _read(response: httpx.Response) -> httpx.Response:
    """Return a response with all its content. Raise `ServerRefused` if that is too large for JSON of ours."""
    content = bytearray()
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) > _MAX_CONTENT_BYTES:
            server = _server_of(response.request)
            raise ServerRefused(f"{server} sent more than {_MAX_CONTENT_BYTES >> 20} MiB")
    headers = [item for item in response.headers.multi_items() if item[0] not in _FRAMING]
    return httpx.Response(
        response.status_code, headers=headers, content=bytes(content), request=response.request
    )


async def _raise_if_missing(response: httpx.Response) -> None:
    """Raise `ArtifactNotFound` if a bucket lacks the file, and not if it is the bucket that is missing."""
    if response.status_code == httpx.codes.NOT_FOUND:
        await response.aread()
        if _NO_BUCKET not in response.text:
            raise ArtifactNotFound(f"{_server_of(response.request)} has no such file")


async def _raise_for_status(
    response: httpx.Response, error_of: Callable[[httpx.Response], DiffuserveError] | None = None
) -> None:
    if not response.is_error:
        return
    await response.aread()
    if response.is_server_error and not _is_final(response):
        raise ServerUnavailable(_refusal(response))
    raise (error_of or error_from)(response)


def _away(response: httpx.Response) -> ServerUnavailable:
    """Return the error of a server that may do it later, or whose artifact store may."""
    kind = StorageAway if _problem(response).get("code") == StorageAway.code else ServerUnavailable
    return kind(_refusal(response), retry_after=_retry_after(response))


def _bucket_error(response: httpx.Response) -> DiffuserveError:
    """Return the error of a bucket: what it refuses is a file, unless it is everything."""
    if response.status_code in _STORE_REFUSALS:
        return StorageRefused(_refusal(response))
    return error_from(response)


def error_from(response: httpx.Response) -> DiffuserveError:
    """Return the error that a response in `application/problem+json` stands for."""
    try:
        return error_of(response.json(), _retry_after(response) or None)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ServerRefused(_refusal(response))


def pause_before_retry(error: Exception) -> float | None:
    """Return the shortest pause before a retry, `None` for an error that no retry helps.

    A limit that the caller has reached is waited for if the server says for how long.
    """
    if isinstance(error, Refused):
        return error.retry_after if error.is_retryable else None
    if isinstance(error, StorageRefused) or not isinstance(error, ServerUnavailable):
        return None
    return error.retry_after


def _reason(error: httpx.TransportError) -> str:
    """Return what the system said, such as `Connection refused`, or else the library."""
    root: BaseException = error
    while (cause := root.__cause__ or root.__context__) is not None:
        root = cause
    if isinstance(root, ConnectionError) and root.errno:
        return os.strerror(root.errno)  # asyncio has another text, without the reason
    if isinstance(root, OSError) and root.strerror:
        return root.strerror
    return ": ".join(part for part in (type(error).__name__, str(error)) if part)


def _server_of(request: httpx.Request) -> str:
    """Return the server's URL, leaving out the path and the query, which may hold a signature."""
    return f"{request.url.scheme}://{request.url.netloc.decode()}"


def _is_final(response: httpx.Response) -> bool:
    """Return whether the server says in a problem that no retry helps."""
    return _problem(response).get("retryable") is False


def _problem(response: httpx.Response) -> Mapping[str, Any]:
    """Return the problem in a response; without any, nothing."""
    try:
        problem = response.json()
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}


def _refusal(response: httpx.Response) -> str:
    """Say which server responded with what."""
    told = f"{_server_of(response.request)} responded with {response.status_code}"
    return ": ".join(part for part in (told, _detail(response)) if part)


def _detail(response: httpx.Response) -> str:
    """Return the detail of a problem, the error of a bucket, or the beginning of any other body on a line.

    On paths that it does not know, a server answers in OpenAI's format.
    """
    try:
        told = response.json()
        return str(told["detail"] if "detail" in told else told["error"]["message"])
    except (ValueError, KeyError, TypeError):
        bucket_error = _BUCKET_ERROR.search(response.text)
    if bucket_error:
        return ": ".join(bucket_error.groups())
    is_page = "html" in response.headers.get("content-type", "")
    return "a web page" if is_page else " ".join(response.text.split())[:_MAX_DETAIL_CHARACTERS]


def _retry_after(response: httpx.Response) -> float:
    """Return the seconds of the `Retry-After` header; 0 for a date, which some proxies send."""
    try:
        return max(float(response.headers.get("retry-after", 0)), 0.0)
    except ValueError:
        return 0.0
