"""Addresses and ports to which webhooks may be sent."""

import ipaddress
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.api.config import ApiConfig
from diffuserve.api.outbound.address_policy import AddressPolicy, port_range
from diffuserve.domain.errors import InvalidParams

# Both registries of IANA, as of 2025: https://www.iana.org/assignments/iana-ipv4-special-registry and
# https://www.iana.org/assignments/iana-ipv6-special-registry. The last ones are in other registries.
SPECIAL = [
    "0.0.0.0/8",
    "0.0.0.0/32",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.0.0/29",
    "192.0.0.8/32",
    "192.0.0.9/32",
    "192.0.0.10/32",
    "192.0.0.170/32",
    "192.0.0.171/32",
    "192.0.2.0/24",
    "192.31.196.0/24",
    "192.52.193.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "192.175.48.0/24",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "240.0.0.0/4",
    "255.255.255.255/32",
    "::1/128",
    "::/128",
    "64:ff9b::/96",
    "64:ff9b:1::/48",
    "100::/64",
    "100:0:0:1::/64",
    "2001::/23",
    "2001::/32",
    "2001:1::1/128",
    "2001:1::2/128",
    "2001:1::3/128",
    "2001:2::/48",
    "2001:3::/32",
    "2001:4:112::/48",
    "2001:10::/28",
    "2001:20::/28",
    "2001:30::/28",
    "2001:db8::/32",
    "2002::/16",
    "2620:4f:8000::/48",
    "3fff::/20",
    "5f00::/16",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
    "::/96",
    "::ffff:0:0:0/96",
    "224.0.0.0/4",
    "ff00::/8",
]
PRIVATE_IPV4 = ("0.0.0.0/8", "10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16")
# Forms in which an IPv6 address carries an IPv4 address.
EMBEDDINGS: dict[str, Callable[[int], int]] = {
    "compatible": lambda v4: v4,
    "mapped": lambda v4: 0xFFFF << 32 | v4,
    "translated": lambda v4: 0xFFFF << 48 | v4,
    "NAT64": lambda v4: 0x64FF9B << 96 | v4,
    "local NAT64": lambda v4: 0x64FF9B0001 << 80 | v4,
    "6to4": lambda v4: 0x2002 << 112 | v4 << 80,
    "Teredo": lambda v4: 0x20010000 << 96 | v4 ^ 0xFFFFFFFF,
}
POLICY = AddressPolicy()


@pytest.mark.parametrize(
    "address",
    [
        "93.184.215.14",
        "192.0.1.0",
        "198.17.255.255",
        "2606:2800:21f:cb07:6820:80da:af6b:8b2c",
        "2001:200::1",
        "2001:4860:4860::8888",
        "3ffe:ffff::1",
        "::ffff:8.8.8.8",
    ],
)
def test_public_addresses_are_allowed(address: str) -> None:
    assert POLICY.allows(ipaddress.ip_address(address))


@pytest.mark.parametrize("block", SPECIAL)
def test_special_purpose_blocks_are_forbidden_from_end_to_end(block: str) -> None:
    network = ipaddress.ip_network(block)
    middle = network.network_address + network.num_addresses // 2
    for address in (network.network_address, middle, network.broadcast_address):
        assert not POLICY.allows(address), address


@pytest.mark.parametrize("form", EMBEDDINGS)
@given(data=st.data())
def test_a_private_address_in_any_disguise_is_forbidden(form: str, data: st.DataObject) -> None:
    network = data.draw(st.sampled_from([ipaddress.IPv4Network(block) for block in PRIVATE_IPV4]))
    private = data.draw(st.ip_addresses(network=network))
    assert not POLICY.allows(ipaddress.IPv6Address(EMBEDDINGS[form](int(private))))


@given(st.ip_addresses(v=6))
def test_only_global_unicast_and_mapped_ipv6_addresses_are_allowed(address: ipaddress.IPv6Address) -> None:
    is_unicast = address in ipaddress.IPv6Network("2000::/3") or address.ipv4_mapped is not None
    assert is_unicast or not POLICY.allows(address)


def test_the_operator_may_allow_networks() -> None:
    policy = AddressPolicy(("10.0.0.0/8", "fd00::/8"))
    assert policy.allows(ipaddress.ip_address("10.1.2.3"))
    assert policy.allows(ipaddress.ip_address("::ffff:10.1.2.3"))
    assert policy.allows(ipaddress.ip_address("fd00::1"))
    assert not policy.allows(ipaddress.ip_address("192.168.1.1"))
    assert not policy.allows(ipaddress.ip_address("::10.1.2.3"))


@pytest.mark.parametrize("url", ["http://h.example/", "https://h.example/", "http://h.example:443/"])
def test_the_ports_of_the_web_are_allowed(url: str) -> None:
    POLICY.check("webhook.url", url)


@pytest.mark.parametrize("port", [0, 22, 25, 79, 81, 444, 6379, 8080, 65_535])
def test_other_ports_are_forbidden(port: int) -> None:
    assert not POLICY.allows_port(port)
    with pytest.raises(InvalidParams, match=f"port {port} is not allowed; use 80, 443"):
        POLICY.check("webhook.url", f"https://h.example:{port}/")


def test_the_operator_names_ports_and_ranges() -> None:
    policy = AddressPolicy((), ("443", "8000-8999"))
    assert [port for port in (80, 443, 7999, 8000, 8999, 9000) if policy.allows_port(port)] == [
        443,
        8000,
        8999,
    ]
    with pytest.raises(InvalidParams, match="use 443, 8000-8999"):
        policy.check("webhook.url", "http://h.example/")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost", "LOCALHOST.", "hooks.localhost"])
def test_both_walls_before_a_receiver_on_this_machine_are_told_at_once(host: str) -> None:
    policy = AddressPolicy(settings="INPUT_URL")
    with pytest.raises(InvalidParams) as refused:
        policy.check("image", f"http://{host}:9999/h")
    assert "port 9999 is not allowed" in refused.value.remedy
    assert "does not lead to a public address" in refused.value.remedy
    for setting in ("DIFFUSERVE_INPUT_URL_ALLOWED_PORTS", "DIFFUSERVE_INPUT_URL_ALLOWED_NETWORKS"):
        assert setting in refused.value.remedy
        assert setting.removeprefix("DIFFUSERVE_").lower() in ApiConfig.__dataclass_fields__
    AddressPolicy(("127.0.0.0/8", "::1/128"), ("9999",)).check("image", f"http://{host}:9999/h")


@pytest.mark.parametrize("text", ["", "x", "0", "65536", "9-8", "1-", "-1", "80,443", "٨٠"])
def test_malformed_ports_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="port"):
        port_range(text)
