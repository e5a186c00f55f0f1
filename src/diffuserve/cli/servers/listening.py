"""The sockets of servers, and the addresses that people are told."""

import ipaddress
import socket

from diffuserve.domain.errors import InvalidParams

_BACKLOG = 2048
# Addresses for documentation (RFC 5737, RFC 3849): the route to them is the route to other machines.
_ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}


def bind(host: str, port: int) -> socket.socket:
    """Return a bound socket that does not accept connections yet.

    Raise `InvalidParams` if the address is taken or does not belong to this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise _refusal(host, port, error) from error
    return listener


def accept(listener: socket.socket) -> None:
    """Let clients connect. Raise `InvalidParams` if another program was faster."""
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise _refusal(host, port, error) from error


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raise `InvalidParams` if the address is taken or not of this machine."""
    listener = bind(host, port)
    accept(listener)
    return listener


def address_of(listener: socket.socket) -> str:
    """Return the URL at which clients on this machine reach the listener."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    return f"http://{_bracketed(host)}:{port}"


def description_of(listener: socket.socket) -> str:
    """Say where the listener listens and, if that is on every address, at which URLs it is reached."""
    host, port = listener.getsockname()[:2]
    if not ipaddress.ip_address(host).is_unspecified:
        return address_of(listener)
    urls = [f"{address_of(listener)} on this machine"]
    if (outside := _outside_address(listener.family)) is not None:
        urls.append(f"http://{_bracketed(outside)}:{port} from others")
    return f"{_bracketed(host)}:{port} (every address): {', '.join(urls)}"


def _outside_address(family: socket.AddressFamily) -> str | None:
    """Return this machine's address on its way to other machines, `None` without a network."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((_ELSEWHERE[family], 9))  # on a datagram socket this sends nothing
        except OSError:
            return None
        address: str = probe.getsockname()[0]
    return address


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _refusal(host: str, port: int, error: Exception) -> InvalidParams:
    reason = getattr(error, "strerror", None) or str(error)
    return InvalidParams(
        "port", port, f"cannot listen on {host}: {reason.lower()}; --port 0 takes a free one"
    )
