"""Requests to the control plane that outlive its absence."""

from collections.abc import Mapping
from typing import Any

import httpx

from diffuserve.backoff import Backoff, retry
from diffuserve.domain.errors import (
    BacklogFull,
    BandNotAllowed,
    Conflict,
    DiffuserveError,
    Forbidden,
    IdempotencyMismatch,
    JobNotFound,
    LeaseLost,
    ModelNotFound,
    NotFinished,
    NotFound,
    QueueFull,
    RateLimited,
    ServerRefused,
    ServerUnavailable,
    TooLarge,
    Unauthorized,
    UploadMissing,
    WorkerNotFound,
)

_RETRIED_STATUSES = frozenset({408, 425, 500, 502, 503, 504})
_BACKOFF = Backoff(first_seconds=0.1, longest_seconds=5.0, jitter=0.5)


class HttpTransport:
    """JSON over HTTP with exponential backoff and full jitter.

    A request is repeated for up to `patience_seconds` while the server is away or says that it is
    overloaded; every route is safe to repeat. An answer that refuses becomes the `DiffuserveError`
    that its `code` stands for.
    """

    def __init__(
        self,
        server: str,
        api_key: str | None = None,
        *,
        patience_seconds: float = 30.0,
        timeout_seconds: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self.server = server.rstrip("/")
        self.patience_seconds = patience_seconds
        self._client = httpx.AsyncClient(
            base_url=self.server,
            headers=headers,
            timeout=httpx.Timeout(timeout_seconds, connect=5.0),
            transport=transport,
            trust_env=False,  # a proxy meant for the outside would see every key
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def request(  # noqa: PLR0913 - what a request may carry
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        content: bytes | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        wait_seconds: float = 0.0,
        patience_seconds: float | None = None,
    ) -> httpx.Response:
        """`wait_seconds` is how long the server may hold the answer back (long-poll).

        Raises `ServerUnavailable` when patience runs out, else what the answer stands for.
        """
        patience = self.patience_seconds if patience_seconds is None else patience_seconds
        request = self._client.build_request(
            method, path, json=json, content=content, params=params, headers=headers
        )
        request.extensions["timeout"]["read"] += wait_seconds
        return await self._persist(request, patience)

    async def put_elsewhere(
        self, url: str, content: bytes, headers: Mapping[str, str], patience_seconds: float
    ) -> None:
        """To another server, which must not see our key."""
        timeout = {"timeout": self._client.timeout.as_dict()}
        request = httpx.Request("PUT", url, content=content, headers=headers, extensions=timeout)
        await self._persist(request, patience_seconds)

    async def _persist(self, request: httpx.Request, patience: float) -> httpx.Response:
        return await retry(lambda _attempt: self._try(request), _pause, _BACKOFF, patience)

    def stream(self, path: str, headers: Mapping[str, str] | None = None) -> Any:
        """An open response, as a context manager; not repeated. For events and files."""
        return self._client.stream(
            "GET", path, headers=headers, timeout=httpx.Timeout(30.0, connect=5.0), follow_redirects=True
        )

    async def _try(self, request: httpx.Request) -> httpx.Response:
        """Send the request once. Raise `ServerUnavailable` for a failure that a retry may help."""
        try:
            response = await self._client.send(request)
        except httpx.TransportError as error:
            raise ServerUnavailable(
                f"{_server_of(request)} does not answer ({type(error).__name__}: {error})"
            ) from error
        if response.status_code in _RETRIED_STATUSES:
            raise ServerUnavailable(
                f"{_server_of(request)} answered {response.status_code}: {_detail(response)}",
                retry_after=_retry_after(response),
            )
        if response.is_error:
            raise error_from(response)
        return response


_ERRORS: Mapping[str, type[DiffuserveError]] = {
    error.code: error
    for error in (
        BandNotAllowed,
        BacklogFull,
        Conflict,
        Forbidden,
        IdempotencyMismatch,
        JobNotFound,
        ModelNotFound,
        NotFinished,
        NotFound,
        QueueFull,
        RateLimited,
        TooLarge,
        Unauthorized,
        UploadMissing,
        WorkerNotFound,
    )
}


def _pause(error: Exception) -> float | None:
    return error.retry_after if isinstance(error, ServerUnavailable) else None


def _server_of(request: httpx.Request) -> str:
    """Without path and query, which may hold a signature."""
    return f"{request.url.scheme}://{request.url.netloc.decode()}"


def _detail(response: httpx.Response) -> str:
    """What a problem says, or what anything else begins with."""
    try:
        return str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return response.text[:200]


def _retry_after(response: httpx.Response) -> float:
    """In seconds; a date, as some proxies give it, counts as nothing said."""
    try:
        return max(float(response.headers.get("retry-after", 0)), 0.0)
    except ValueError:
        return 0.0


def error_from(response: httpx.Response) -> DiffuserveError:
    """The error that an answer in `application/problem+json` stands for."""
    try:
        problem = response.json()
        code, detail = str(problem["code"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        return ServerRefused(
            f"{_server_of(response.request)} answered {response.status_code}: {response.text[:200]}"
        )
    if code == LeaseLost.code:
        return LeaseLost(str(problem.get("job_id", "?")))
    if code in _ERRORS:
        return _ERRORS[code](detail)
    return ServerRefused(detail)
