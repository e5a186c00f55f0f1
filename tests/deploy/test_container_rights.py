"""Rights of what runs in containers, which are those that it needs, and its origin, which does not move."""

import ipaddress
import re
import stat
import subprocess
from collections.abc import Mapping
from importlib.metadata import requires
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest
import yaml
from packaging.utils import canonicalize_name

from support.requirements import closure

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "docker"
LOCKS = FOLDER / "locks"
DOCKERFILES = [FOLDER / "Dockerfile.control", FOLDER / "Dockerfile.worker"]
AS_ROOT = {"s3", "bucket"}  # an image without another user
DIGEST = r"[\w./-]+:[\w.-]*\d[\w.-]*@sha256:[0-9a-f]{64}"

Service = Mapping[str, Any]


@pytest.fixture(scope="module")
def compose() -> Mapping[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8"))
    return loaded


@pytest.fixture(scope="module")
def services(compose: Mapping[str, Any]) -> Mapping[str, Service]:
    found: dict[str, Service] = compose["services"]
    return found


def test_no_service_has_more_rights_than_it_needs(services: Mapping[str, Service]) -> None:
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["read_only"] is True, name
        assert (service.get("user") in {None, "0", "root"}) is (name in AS_ROOT), name
        assert not {"privileged", "cap_add", "pid", "ipc", "devices"} & service.keys(), name


def test_images_of_others_are_named_by_their_digest(services: Mapping[str, Service]) -> None:
    images = [service["image"] for service in services.values()]
    foreign = [image for image in images if not image.startswith("diffuserve-")]
    assert len(foreign) == 7
    assert all(re.fullmatch(DIGEST, image) for image in foreign), foreign
    for path in DOCKERFILES:
        text = path.read_text("utf-8")
        assert re.search(rf"^ARG PYTHON={DIGEST}$", text, re.MULTILINE), path.name
        assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${PYTHON}"}
        assert "syntax=" not in text, "an image that interprets the file is one more to name"


def test_the_control_planes_believe_the_proxy_alone(compose: Mapping[str, Any]) -> None:
    control, proxy = compose["services"]["control"], compose["services"]["proxy"]
    address = proxy["networks"]["default"]["ipv4_address"]
    assert orjson.loads(control["environment"]["DIFFUSERVE_TRUSTED_PROXIES"]) == [address]
    [network] = compose["networks"]["default"]["ipam"]["config"]
    assert ipaddress.ip_address(address) in ipaddress.ip_network(network["subnet"])
    assert ipaddress.ip_address(address) not in ipaddress.ip_network(network["ip_range"]), "given to others"


def test_the_proxy_limits_each_client_as_the_server_would() -> None:
    text = (FOLDER / "nginx.conf").read_text("utf-8")
    zone = re.search(r"^limit_conn_zone \$binary_remote_addr zone=(\w+):\w+;$", text, re.MULTILINE)
    limit = re.search(r"^    limit_conn (\w+) (\d+);$", text, re.MULTILINE)
    assert zone is not None
    assert limit is not None
    assert limit[1] == zone[1]
    assert "proxy_set_header X-Forwarded-For $remote_addr;" in text, "what a client says of itself is dropped"


def test_valkey_asks_for_the_password_that_the_control_planes_have(services: Mapping[str, Service]) -> None:
    url = urlsplit(services["control"]["environment"]["DIFFUSERVE_VALKEY_URL"])
    command = services["valkey"]["command"]
    assert url.password
    assert command[command.index("--requirepass") + 1] == url.password
    assert "ports" not in services["valkey"]


def test_each_reads_its_own_key_without_being_root(services: Mapping[str, Service], tmp_path: Path) -> None:
    keys, program = tmp_path / "keys", tmp_path / "diffuserve"
    keys.mkdir()
    program.write_text('#!/bin/sh\n[ "$1" = db ] || echo dfs_key\n')
    program.chmod(0o700)
    [script] = services["init"]["command"]
    script = script.replace("$$", "$").replace("/keys", str(keys))
    command = [*services["init"]["entrypoint"], script]
    subprocess.run(command, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=True)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in keys.iterdir()}
    assert modes == {"worker": 0o600, "monitor": 0o640}
    assert services["init"]["user"] == services["worker"]["user"] == "10001"
    assert services["prometheus"]["group_add"] == ["10001"]
    assert "--owner=diffuserve --group=diffuserve --mode=0750 /keys" in DOCKERFILES[0].read_text("utf-8")


def test_images_install_nothing_without_a_hash() -> None:
    for path in DOCKERFILES:
        text = path.read_text("utf-8").replace("\\\n", " ")
        installs = re.findall(r"pip install ([^&\n]*)", text)
        assert len(installs) >= 3
        assert all("--require-hashes" in each or "--no-index" in each for each in installs), path.name
        assert all("--no-deps" in each for each in installs), path.name
        assert "--no-index" in re.findall(r"pip wheel ([^&\n]*)", text)[0]
        assert "index-url" not in text
        named = {FOLDER / lock for lock in re.findall(r'-r "?(locks/[\w-]+)\.txt', text)}
        assert all(each.with_suffix(".txt").exists() for each in named)


def locked(name: str) -> dict[str, tuple[str, list[str]]]:
    """Return version and hashes by package of a lock."""
    text = (LOCKS / f"{name}.txt").read_text("utf-8").replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if line and not line.startswith(("#", "--index-url ")):
            pin, *options = line.split()
            package, version = pin.split("==")
            found[package] = (version, [each.removeprefix("--hash=sha256:") for each in options])
    return found


@pytest.mark.parametrize("path", sorted(LOCKS.glob("*.txt")), ids=lambda path: path.stem)
def test_a_lock_has_the_versions_that_are_tested_and_a_hash_for_each(path: Path) -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines())
    tested = {str(canonicalize_name(name)): version for name, version in pins.items()}
    packages = locked(path.stem)
    assert packages
    for package, (version, hashes) in packages.items():
        assert hashes, package
        assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in hashes), package
        assert version.partition("+")[0] == tested.get(package, version).partition("+")[0], package
    indexes = re.findall(r"^--(?:extra-)?index-url (\S+)", path.read_text("utf-8"), re.MULTILINE)
    assert indexes == (["https://download.pytorch.org/whl/cpu"] if path.stem == "torch-cpu" else [])


@pytest.mark.parametrize(
    ("names", "extra"),
    [
        (("control",), "server"),
        (("control[images]",), "images"),
        (("worker", "torch-cpu"), "engine"),
        (("worker", "torch-cuda"), "engine"),
    ],
)
def test_a_lock_is_whole(names: tuple[str, ...], extra: str) -> None:
    packages = set().union(*(locked(name) for name in names))
    wanted = closure(requires("diffuserve") or (), frozenset({extra})) - {"diffuserve"}
    assert len(wanted) > 40
    assert wanted - packages == set(), "run scripts/lock_images.py"
    cuda = {package for package in packages if re.match("nvidia-|cuda-|triton|setuptools", package)}
    assert packages - cuda - wanted == set(), "run scripts/lock_images.py"
