"""Addresses and ports that requests to clients' URLs may reach."""

import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import SplitResult, urlsplit

from diffuserve.domain.errors import InvalidParams

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

DEFAULT_PORTS = ("80", "443")
"""Ports of the web; any other may be that of a service that takes HTTP for its own protocol."""

_MAX_URL_CHARACTERS = 2_000
_SCHEME_PORTS = {"http": 80, "https": 443}
_LAST_PORT = 65_535
_LOCAL_NAME = re.compile(r"(.*\.)?localhost\.?")  # always loopback: RFC 6761, section 6.3
_LOOPBACK = ipaddress.IPv4Address("127.0.0.1")

# Every block of the IANA IPv4 special-purpose address registry, and multicast. Also the few blocks in it
# that are routed: none of them has a receiver of webhooks. Written out, because `is_global` of `ipaddress`
# changes with the version of Python.
_SPECIAL_IPV4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.31.196.0/24",
            "192.52.193.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "192.175.48.0/24",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",
            "240.0.0.0/4",
        ),
    )
)
# All that IANA has given out for unicast; everything else (loopback, link-local, site-local, unique local,
# multicast, and the forms that embed an IPv4 address: compatible, translated, NAT64) is outside of it.
_UNICAST_IPV6 = ipaddress.IPv6Network("2000::/3")
# What the IANA IPv6 special-purpose address registry reserves within it: protocol assignments with Teredo,
# documentation, 6to4, AS112.
_SPECIAL_IPV6 = tuple(
    map(
        ipaddress.IPv6Network,
        ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20"),
    )
)


class AddressPolicy:
    """Allows public addresses and the ports of the web, and what the operator names."""

    def __init__(
        self,
        allowed_networks: Iterable[str] = (),
        allowed_ports: Iterable[str] = DEFAULT_PORTS,
        *,
        settings: str = "WEBHOOK",
    ) -> None:
        """Allow networks beside public addresses, and ports such as `443` or `8000-8999`.

        Errors name the settings that say so, `DIFFUSERVE_WEBHOOK_ALLOWED_PORTS` and `…_NETWORKS`, with
        `settings` in place of `WEBHOOK`.
        """
        self._allowed: list[Network] = [ipaddress.ip_network(network) for network in allowed_networks]
        self._ports = [port_range(ports) for ports in allowed_ports]
        self._settings = f"DIFFUSERVE_{settings}_ALLOWED"

    def check(self, field: str, url: str) -> None:
        """Raise `InvalidParams` for a malformed URL, or one whose host or port is forbidden."""
        host, port = _host_and_port(field, url)
        address = _address_of(host)
        refusals = [] if self.allows_port(port) else [self.port_refusal(port)]
        # Other names are resolved and checked when a request is sent.
        if address is not None and not self.allows(address):
            refusals.append(self.host_refusal(host))
        if refusals:
            raise InvalidParams(field, url, "; and ".join(refusals))

    def allows(self, address: Address) -> bool:
        """Return whether requests may be sent to the address."""
        address = _unmapped(address)
        if any(address.version == network.version and address in network for network in self._allowed):
            return True
        if isinstance(address, ipaddress.IPv4Address):
            return not any(address in network for network in _SPECIAL_IPV4)
        return address in _UNICAST_IPV6 and not any(address in network for network in _SPECIAL_IPV6)

    def allows_port(self, port: int) -> bool:
        """Return whether requests may be sent to the port."""
        return any(port in ports for ports in self._ports)

    def port_refusal(self, port: int) -> str:
        """Say that a port is not allowed, and what to do."""
        shown = ", ".join(
            str(ports.start) if len(ports) == 1 else f"{ports.start}-{ports.stop - 1}"
            for ports in self._ports
        )
        return f"port {port} is not allowed; use {shown}, or add it to the server's {self._settings}_PORTS"

    def host_refusal(self, host: str) -> str:
        """Say that a host is not allowed, and what to do."""
        return (
            f"{host} does not lead to a public address; use another, or add its network to the server's "
            f"{self._settings}_NETWORKS"
        )


def port_range(text: str) -> range:
    """Return the ports in text such as `8080` or `8000-8999`. Raise `ValueError`."""
    if re.fullmatch(r"[0-9]{1,5}(-[0-9]{1,5})?", text) is None:
        raise ValueError(f"{text!r} is not a port such as 8080, or a range such as 8000-8999")
    first, _, last = text.partition("-")
    ports = range(int(first), int(last or first) + 1)
    if not ports or not ports.start > 0 or ports.stop > _LAST_PORT + 1:
        raise ValueError(f"{text!r}: ports are from 1 to {_LAST_PORT}, the smaller one first")
    return ports


def _host_and_port(field: str, url: str) -> tuple[str, int]:
    """Return the URL's host and port. Raise `InvalidParams`."""
    if len(url) > _MAX_URL_CHARACTERS:
        raise InvalidParams(field, url, f"at most {_MAX_URL_CHARACTERS:,} characters are allowed")
    parts = _split(url)
    if parts is None or parts.hostname is None or not url.isascii() or not url.isprintable():
        raise InvalidParams(field, url, "must be a URL such as https://example.com/hooks/diffuserve")
    if parts.username is not None or parts.fragment or " " in url:
        raise InvalidParams(field, url, "must not contain user names, fragments or spaces")
    # Port 0 is a port as well, which `or` would take for none.
    return parts.hostname, _SCHEME_PORTS[parts.scheme] if parts.port is None else parts.port


def _address_of(host: str) -> Address | None:
    """Return the address that a host surely is, `None` for names that must be resolved."""
    if _LOCAL_NAME.fullmatch(host):
        return _LOOPBACK
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _split(url: str) -> SplitResult | None:
    """Return the parts of a URL of the web, `None` for anything else."""
    try:
        parts = urlsplit(url)
        _ = parts.hostname, parts.port  # both are parsed now, and may be malformed
    except ValueError:
        return None
    return parts if parts.scheme in _SCHEME_PORTS else None


def _unmapped(address: Address) -> Address:
    """Return the IPv4 address that an IPv4-mapped IPv6 address stands for; any other unchanged."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
