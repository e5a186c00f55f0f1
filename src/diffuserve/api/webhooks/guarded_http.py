"""HTTP requests to URLs that clients name, never into a private network unless the operator allows it."""

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
"""Resolves a host name and a port to IP addresses."""

_MAX_RESPONSE_BYTES = 65_536
_MAX_URL_CHARACTERS = 2_000
_MAX_CONNECTIONS = 128


class AddressNotAllowed(ConnectionError):
    """Host name that resolves to an address which the policy forbids."""


class AddressPolicy:
    """Allows public addresses, and the networks that the operator names."""

    def __init__(self, allowed_networks: Iterable[str]) -> None:
        self._allowed: list[Network] = [ipaddress.ip_network(network) for network in allowed_networks]

    def check(self, field: str, url: str) -> None:
        """Raise `InvalidParams` for a malformed URL, or one whose host is a forbidden address."""
        host = _host(field, url)
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return  # a name, which is resolved and checked when a request is sent
        if not self.allows(address):
            raise InvalidParams(field, url, f"{address} is not a public address")

    def allows(self, address: Address) -> bool:
        """Return whether requests may be sent to the address."""
        address = _unmapped(address)
        if any(address.version == network.version and address in network for network in self._allowed):
            return True
        return address.is_global and not address.is_multicast and not _is_tunnel(address)


class GuardedHttpClient:
    """Sends POST requests to clients' own servers; redirects are not followed.

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
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=ssl_context,
            max_connections=_MAX_CONNECTIONS,
            keepalive_expiry=5.0,
            network_backend=_GuardedBackend(policy, resolve or _resolve),
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

    async def close(self) -> None:
        """Close every connection."""
        await self._pool.aclose()


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
        addresses = await self._resolve(host, port)
        if not addresses:
            raise OSError(f"{host} has no address")
        for address in addresses:
            # One forbidden address rules out the name: an honest one has no mixture of both kinds.
            if not self._policy.allows(ipaddress.ip_address(address)):
                raise AddressNotAllowed(f"{host} resolves to {address}, which is not a public address")
        return await self._backend.connect_tcp(addresses[0], port, timeout, local_address, socket_options)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def _resolve(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]).partition("%")[0] for *_, sockaddr in found]


def _host(field: str, url: str) -> str:
    """Return the URL's host. Raise `InvalidParams`."""
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError:
        host = None
    if len(url) > _MAX_URL_CHARACTERS:
        raise InvalidParams(field, url, f"at most {_MAX_URL_CHARACTERS:,} characters are allowed")
    if host is None or parts.scheme not in ("http", "https") or not url.isascii() or not url.isprintable():
        raise InvalidParams(field, url, "must be a URL such as https://example.com/hooks/diffuserve")
    if parts.username is not None or parts.fragment or " " in url:
        raise InvalidParams(field, url, "must not contain user names, fragments or spaces")
    return host


def _unmapped(address: Address) -> Address:
    """Return the IPv4 address that an IPv4-mapped IPv6 address stands for; any other unchanged."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def _is_tunnel(address: Address) -> bool:
    """Return whether the address embeds another one (6to4, Teredo, NAT64)."""
    if isinstance(address, ipaddress.IPv4Address):
        return False
    return address.sixtofour is not None or address.teredo is not None or address in _NAT64
