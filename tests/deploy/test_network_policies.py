"""Pods reach what they need and nothing else, by the policies as a cluster would apply them."""

import ipaddress
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from deploy.test_kubernetes import OVERLAYS, of_kind, rendered

CONTROL, WORKER, MIGRATION = (
    {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "diffuserve"}
    for name in ("control", "worker", "migration")
)
DNS = {"kubernetes.io/metadata.name": "kube-system"}
Labels = Mapping[str, str]


def selects(selector: Mapping[str, Any], labels: Labels) -> bool:
    named = selector.get("matchLabels", {}).items()
    listed = selector.get("matchExpressions", ())
    assert all(each["operator"] == "In" for each in listed)
    return all(labels.get(name) == value for name, value in named) and all(
        labels.get(each["key"]) in each["values"] for each in listed
    )


def matches(peer: Mapping[str, Any], to: str | Labels, is_namespace: bool) -> bool:
    """Return whether a peer of a policy covers an address, or pods or a namespace with these labels."""
    if isinstance(to, str):
        address, block = ipaddress.ip_address(to), peer.get("ipBlock")
        return block is not None and (
            address in ipaddress.ip_network(block["cidr"])
            and not any(address in ipaddress.ip_network(each) for each in block.get("except", ()))
        )
    selector = peer.get("namespaceSelector" if is_namespace else "podSelector")
    return selector is not None and selects(selector, to)


def reaches(
    overlay: str, pod: Labels, to: str | Labels, port: int, protocol: str = "TCP", is_namespace: bool = False
) -> bool:
    """Return whether a pod may send to an address, or to pods or a namespace with these labels."""
    policies = [
        policy["spec"]
        for policy in of_kind(rendered(overlay), "NetworkPolicy")
        if "Egress" in policy["spec"]["policyTypes"] and selects(policy["spec"]["podSelector"], pod)
    ]
    assert policies, "a pod that no policy selects may send anywhere"
    rules = [rule for policy in policies for rule in policy.get("egress", ())]
    return any(
        {"protocol": protocol, "port": port} in rule["ports"]
        and any(matches(peer, to, is_namespace) for peer in rule["to"])
        for rule in rules
    )


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_reach_what_they_need(overlay: str) -> None:
    assert reaches(overlay, WORKER, CONTROL, 8000)
    for pod in (CONTROL, WORKER, MIGRATION):
        assert reaches(overlay, pod, DNS, 53, "UDP", is_namespace=True)
    for pod in (CONTROL, WORKER):
        assert reaches(overlay, pod, "93.184.215.14", 443)
        assert reaches(overlay, pod, "2606:2800:21f::1", 443)
    for pod in (CONTROL, MIGRATION):
        assert reaches(overlay, pod, "10.0.0.5", 5432)
    assert reaches(overlay, CONTROL, "172.16.3.4", 6379)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_url_of_a_tenant_leads_into_a_private_network(overlay: str) -> None:
    private = (
        "10.0.0.5",
        "172.20.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "fd00::1",
    )
    for pod in (CONTROL, MIGRATION):
        for address in private:
            assert not any(reaches(overlay, pod, address, port) for port in (22, 80, 443, 8080))
    assert not any(reaches(overlay, MIGRATION, "93.184.215.14", port) for port in (80, 443))
    for address in private[:2]:
        assert not any(reaches(overlay, WORKER, address, port) for port in (80, 443, 5432, 6379))
    assert reaches(overlay, WORKER, "169.254.169.254", 80) is (overlay == "spot"), "notices of the cloud"
    assert not reaches(overlay, CONTROL, WORKER, 9100)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nobody_is_believed_as_a_proxy_until_the_operator_names_one(overlay: str) -> None:
    [settings] = [each["data"] for each in of_kind(rendered(overlay), "ConfigMap")]
    [network] = map(ipaddress.IPv4Network, orjson.loads(settings["DIFFUSERVE_TRUSTED_PROXIES"]))
    assert network.subnet_of(ipaddress.IPv4Network("192.0.2.0/24")), "an example, as images.example.com is"
