"""Limits of connections, so that clients which send nothing, or slowly, leave room for the others."""

import ipaddress
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from diffuserve.options import option

_IPV6_PREFIX = 64  # a network of this size is what one customer gets, with 2^64 addresses


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Caps of the connections that a server accepts, and their deadlines, in seconds."""

    max_connections: int = option(4_096, "Open connections in all; more get 503.", ge=1)
    max_connections_per_address: int = option(
        256, "Open connections of one client address, or IPv6 network of 64 bits; more get 503.", ge=1
    )
    trusted_proxies: tuple[str, ...] = option(
        ("127.0.0.0/8", "::1"),
        "Addresses and networks of reverse proxies, which connect for many clients: their X-Forwarded "
        "headers are believed, and their connections are not counted by address.",
    )
    header_seconds: float = option(10.0, "Seconds within which a request's headers must arrive.", gt=0)
    body_seconds: float = option(
        20.0, "Seconds within which a body must arrive, and more for what has arrived.", gt=0
    )
    body_bytes_per_second: float = option(
        1_024.0, "Bytes of a body that extend its time by a second: the least rate of an upload.", gt=0
    )
    keep_alive_seconds: float = option(
        5.0, "Seconds that a connection may be idle between two requests.", gt=0
    )
    write_seconds: float = option(
        60.0, "Seconds after which a client that does not read its response is disconnected.", gt=0
    )

    def body_deadline(self, started_at: float, num_bytes: int) -> float:
        """Return when a body that began at `started_at` is late if no more than `num_bytes` have arrived."""
        return started_at + self.body_seconds + num_bytes / self.body_bytes_per_second


class OpenConnections:
    """Counts the open connections, in all and by address. A connection is any object that identifies it."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._trusted = [ipaddress.ip_network(network) for network in limits.trusted_proxies]
        self._groups: dict[Hashable, str | None] = {}
        self._num_by_group: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._groups)

    def admit(self, connection: Hashable, address: str) -> bool:
        """Count a connection, or return false if there are too many already."""
        group = self._group(address)
        is_full = len(self._groups) >= self._limits.max_connections
        if is_full or self._num_by_group[group or ""] >= self._limits.max_connections_per_address:
            return False
        self._groups[connection] = group
        if group is not None:
            self._num_by_group[group] += 1
        return True

    def release(self, connection: Hashable) -> None:
        """Count a connection no more; one that was not admitted changes nothing."""
        group = self._groups.pop(connection, None)
        if group is not None:
            self._num_by_group[group] -= 1
            if not self._num_by_group[group]:
                del self._num_by_group[group]

    def is_proxy(self, address: str) -> bool:
        """Return whether an address is that of a trusted proxy."""
        return self._group(address) is None

    def _group(self, address: str) -> str | None:
        """Return what is counted together with this address, `None` for a proxy."""
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return address
        if isinstance(parsed, ipaddress.IPv6Address):
            parsed = parsed.ipv4_mapped or parsed
        if any(parsed in network for network in self._trusted):
            return None
        if isinstance(parsed, ipaddress.IPv6Address):
            return str(ipaddress.ip_network((parsed, _IPV6_PREFIX), strict=False))
        return str(parsed)
