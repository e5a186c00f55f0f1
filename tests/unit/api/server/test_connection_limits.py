"""Counting of connections, and how long a body may take."""

import pytest

from diffuserve.api.server.connection_limits import ConnectionLimits, OpenConnections


def admitted(limits: ConnectionLimits, *addresses: str) -> list[bool]:
    """Return which of the connections, opened one after the other, are admitted."""
    connections = OpenConnections(limits)
    return [connections.admit(number, address) for number, address in enumerate(addresses)]


def test_connections_are_limited_in_all() -> None:
    limits = ConnectionLimits(max_connections=2)
    assert admitted(limits, "10.0.0.1", "10.0.0.2", "10.0.0.3", "127.0.0.1") == [True, True, False, False]


def test_connections_are_limited_by_address() -> None:
    limits = ConnectionLimits(max_connections_per_address=2)
    addresses = ("10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.2", "::ffff:10.0.0.1")
    assert admitted(limits, *addresses) == [True, True, False, True, False]


def test_addresses_of_one_ipv6_network_are_counted_together() -> None:
    limits = ConnectionLimits(max_connections_per_address=1)
    addresses = ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1")
    assert admitted(limits, *addresses) == [True, False, True]


def test_proxies_are_not_limited_by_address() -> None:
    limits = ConnectionLimits(max_connections_per_address=1, trusted_proxies=("127.0.0.0/8", "10.0.0.5"))
    assert admitted(limits, "127.0.0.1", "127.0.0.1", "10.0.0.5", "10.0.0.5") == [True] * 4
    assert admitted(limits, "10.0.0.6", "10.0.0.6", "::1", "::1") == [True, False, True, False]


def test_a_connection_that_ends_leaves_its_place_to_another() -> None:
    connections = OpenConnections(ConnectionLimits(max_connections=2, max_connections_per_address=1))
    assert connections.admit("first", "10.0.0.1")
    connections.release("never admitted")
    assert not connections.admit("second", "10.0.0.1")
    connections.release("first")
    connections.release("first")
    assert len(connections) == 0
    assert connections.admit("second", "10.0.0.1")


@pytest.mark.parametrize(("num_bytes", "due"), [(0, 120.0), (2_048, 122.0)])
def test_what_arrives_of_a_body_gives_it_more_time(num_bytes: int, due: float) -> None:
    limits = ConnectionLimits(body_seconds=20.0, body_bytes_per_second=1_024.0)
    assert limits.body_deadline(100.0, num_bytes) == due
