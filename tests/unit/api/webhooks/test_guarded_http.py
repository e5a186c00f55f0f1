"""Addresses to which webhooks may be sent."""

import ipaddress

import pytest

from diffuserve.api.webhooks.guarded_http import AddressPolicy


@pytest.mark.parametrize(
    "address", ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "::ffff:8.8.8.8"]
)
def test_public_addresses_are_allowed(address: str) -> None:
    assert AddressPolicy(()).allows(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "192.0.2.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "fc00::1",
        "ff02::1",
        "ff0e::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "2001:0:7f00:1::",
    ],
)
def test_private_and_special_addresses_are_forbidden(address: str) -> None:
    assert not AddressPolicy(()).allows(ipaddress.ip_address(address))


def test_the_operator_may_allow_networks() -> None:
    policy = AddressPolicy(("10.0.0.0/8", "fd00::/8"))
    assert policy.allows(ipaddress.ip_address("10.1.2.3"))
    assert policy.allows(ipaddress.ip_address("::ffff:10.1.2.3"))
    assert policy.allows(ipaddress.ip_address("fd00::1"))
    assert not policy.allows(ipaddress.ip_address("192.168.1.1"))
