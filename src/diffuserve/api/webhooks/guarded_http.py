"""Calls to addresses that clients name: never into our own network, unless the operator allows it."""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from urllib.parse import urlsplit

import httpcore

from diffuserve.domain.errors import InvalidParams

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""From a host's name and a port to its addresses."""

_MAX_ANSWER_BYTES = 65_536
_MAX_URL_CHARACTERS = 2_000
_MAX_CONNECTIONS = 128


class AddressRefused(ConnectionError):
    """A name that leads where we do not call."""


class Guard:
    """Which addresses may be called: public ones, and the networks that the operator allows."""

    def __init__(self, allowed_networks: Iterable[str]) -> None:
        self._allowed: list[Network] = [ipaddress.ip_network(one) for one in allowed_networks]

    def check(self, field: str, url: str) -> None:
        """Raises `InvalidParams` for what is no URL that could ever be called."""
        parts = _split(field, url)
        try:
            address = ipaddress.ip_address(parts[1])
        except ValueError:
            return  # a name; where it leads is seen when it is called
        if not self.allows(address):
            raise InvalidParams(field, url, f"{address} is not a public address, and is not called")

    def allows(self, address: Address) -> bool:
        address = _plain(address)
        if any(address.version == one.version and address in one for one in self._allowed):
            return True
        return address.is_global and not address.is_multicast and not _is_tunnel(address)


class Outside:
    """POSTs to clients' own servers. A redirect is an answer, and is not followed.

    A name is resolved once, its addresses are checked, and the connection goes to the very address
    that was checked: a name that leads elsewhere at a second look gains nothing. Proxies that the
    environment names are not used, since they would do the looking.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        resolve: Resolve | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=ssl_context,
            max_connections=_MAX_CONNECTIONS,
            keepalive_expiry=5.0,
            network_backend=_GuardedBackend(guard, resolve or _resolve),
        )

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> int:
        """The answer's status.

        Raises `AddressRefused`, `TimeoutError` after `seconds` in all, `OSError` or `httpcore`'s errors.
        """
        async with asyncio.timeout(seconds):
            async with self._pool.stream("POST", url, headers=list(headers.items()), content=body) as answer:
                size = 0
                async for chunk in answer.aiter_stream():
                    size += len(chunk)
                    if size > _MAX_ANSWER_BYTES:  # nobody reads it; it would only take time
                        break
                return answer.status

    async def close(self) -> None:
        await self._pool.aclose()


class _GuardedBackend(httpcore.AsyncNetworkBackend):
    def __init__(self, guard: Guard, resolve: Resolve) -> None:
        self._guard = guard
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
        found = await self._resolve(host, port)
        if not found:
            raise OSError(f"{host} has no address")
        refused = [one for one in found if not self._guard.allows(ipaddress.ip_address(one))]
        if refused:  # a name that leads to both is one to be wary of
            raise AddressRefused(f"{host} leads to {refused[0]}, which is not a public address")
        return await self._backend.connect_tcp(found[0], port, timeout, local_address, socket_options)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def _resolve(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]).partition("%")[0] for *_, sockaddr in found]


def _split(field: str, url: str) -> tuple[str, str]:
    """Scheme and host. Raises `InvalidParams`."""
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError:
        host = None
    if len(url) > _MAX_URL_CHARACTERS:
        raise InvalidParams(field, url, f"at most {_MAX_URL_CHARACTERS:,} characters are allowed")
    if host is None or parts.scheme not in ("http", "https") or not url.isascii() or not url.isprintable():
        raise InvalidParams(field, url, "give a URL such as https://example.com/hooks/diffuserve")
    if parts.username is not None or parts.fragment or " " in url:
        raise InvalidParams(field, url, "leave out user names, fragments and spaces")
    return parts.scheme, host


def _plain(address: Address) -> Address:
    """The address of IPv4 that one of IPv6 stands for."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def _is_tunnel(address: Address) -> bool:
    """Whether another address is hidden in this one."""
    if isinstance(address, ipaddress.IPv4Address):
        return False
    return address.sixtofour is not None or address.teredo is not None or address in _NAT64
