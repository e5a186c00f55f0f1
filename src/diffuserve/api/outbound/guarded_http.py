"""HTTP requests to URLs that clients name, never into a private network unless the operator allows it."""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import httpcore

from diffuserve.api.outbound.address_policy import AddressPolicy

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Resolves a host name and a port to IP addresses."""

_HTTP_ERRORS = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException)
_MAX_RESPONSE_BYTES = 65_536
MAX_CONNECTIONS = 256
MIN_RATE = 65_536
"""Bytes a second at which what is fetched must come, but for its first seconds."""
_FIRST_SECONDS = 10.0


class AddressNotAllowed(ConnectionError):
    """Port that the policy forbids, or host name that leads to no address which it allows."""


@dataclass(frozen=True)
class Fetched:
    """A response: its status, its headers by their names in lower case, and its body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ResponseTooLarge(ConnectionError):
    """Response with more bytes than are wanted."""


class TooSlow(ConnectionError):
    """Response that comes at less than `MIN_RATE`."""


class GuardedHttpClient:
    """Sends requests to clients' own servers; redirects are not followed.

    A name is resolved once, its addresses are checked, and the connection goes to the address that was
    checked, so DNS rebinding gains nothing. Proxies of the environment are not used, because they would
    resolve names themselves.
    """

    def __init__(
        self,
        policy: AddressPolicy,
        *,
        resolve: Resolve | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._resolver = ThreadedResolver(MAX_CONNECTIONS)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=ssl_context,
            max_connections=MAX_CONNECTIONS,
            keepalive_expiry=5.0,
            network_backend=_GuardedBackend(policy, resolve or self._resolver),
        )

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> int:
        """Return the status of the response.

        Raise `AddressNotAllowed`, `TimeoutError` after `seconds` in all, `OSError`, or an error of httpcore.
        """
        async with asyncio.timeout(seconds):
            async with self._pool.stream(
                "POST", url, headers=list(headers.items()), content=body
            ) as response:
                num_bytes = 0
                async for chunk in response.aiter_stream():
                    num_bytes += len(chunk)
                    # A connection is reused once its response is read; a long one is not worth it.
                    if num_bytes > _MAX_RESPONSE_BYTES:
                        break
                return response.status

    async def get(self, url: str, headers: Mapping[str, str], max_bytes: int, seconds: float) -> Fetched:
        """Return the response; its body only if the status is 200.

        Raise `AddressNotAllowed`, `ResponseTooLarge`, `TimeoutError` after `seconds` in all, `TooSlow` for a
        body that comes at less than `MIN_RATE`, or another `OSError`.
        """
        pace = _Pace(asyncio.get_running_loop().time())
        try:
            async with (
                asyncio.timeout(seconds),
                pace.kept(),
                self._pool.stream("GET", url, headers=list(headers.items())) as response,
            ):
                found = {
                    name.decode("latin-1").lower(): text.decode("latin-1") for name, text in response.headers
                }
                length = found.get("content-length", "")
                if response.status == 200 and length.isdecimal() and int(length) > max_bytes:
                    raise ResponseTooLarge(f"{int(length):,} bytes")
                body = bytearray()
                if response.status == 200:
                    async for chunk in response.aiter_stream():
                        body += chunk
                        pace.note(len(body))
                        if len(body) > max_bytes:
                            raise ResponseTooLarge(f"more than {max_bytes:,} bytes")
                return Fetched(response.status, found, bytes(body))
        except _HTTP_ERRORS as error:
            raise ConnectionError(str(error) or type(error).__name__) from error

    async def close(self) -> None:
        """Close every connection."""
        self._resolver.close()
        await self._pool.aclose()


class _Pace:
    """The deadline of a body that must come at `MIN_RATE` after its first seconds."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._deadline = asyncio.timeout_at(began + _FIRST_SECONDS)

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Raise `TooSlow` within the block as soon as the body is behind."""
        try:
            async with self._deadline:
                yield
        except TimeoutError as error:
            if self._deadline.expired():
                raise TooSlow(f"fewer than {MIN_RATE:,} bytes a second") from error
            raise

    def note(self, num_bytes: int) -> None:
        """Count what has come so far."""
        self._deadline.reschedule(self._began + _FIRST_SECONDS + num_bytes / MIN_RATE)


class ThreadedResolver:
    """Resolves names on threads of its own.

    A name server that does not respond holds a thread for up to a minute, whatever the timeout of the
    request. On the threads of the event loop it would hold up files and databases too.
    """

    def __init__(self, max_threads: int) -> None:
        self._threads = ThreadPoolExecutor(max_threads, thread_name_prefix="webhook-resolver")

    async def __call__(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host. Raise `OSError`."""
        look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, look_up)
        return [str(sockaddr[0]).partition("%")[0] for *_, sockaddr in found]

    def close(self) -> None:
        """Let idle threads end, and the others once their name server has responded."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class _GuardedBackend(httpcore.AsyncNetworkBackend):
    def __init__(self, policy: AddressPolicy, resolve: Resolve) -> None:
        self._policy = policy
        self._resolve = resolve
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        if not self._policy.allows_port(port):
            raise AddressNotAllowed(self._policy.port_refusal(port))
        address = await self._public_address(host, port)
        return await self._backend.connect_tcp(address, port, timeout, local_address, socket_options)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _public_address(self, host: str, port: int) -> str:
        """Return an address of a host. Raise `AddressNotAllowed` unless all of them are allowed.

        The error is one for names that lead inside and for those that nobody knows: the name server may know
        those of a private network, which is nothing to tell.
        """
        try:
            addresses = await self._resolve(host, port)
        except socket.gaierror:
            addresses = ()
        # One forbidden address rules out the name: an honest one has no mixture of both kinds.
        if not addresses or not all(map(self._policy.allows, map(ipaddress.ip_address, addresses))):
            raise AddressNotAllowed(self._policy.host_refusal(host))
        return addresses[0]
