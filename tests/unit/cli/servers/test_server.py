"""The running control plane of `api` and `serve`, and the lock of its data folder."""

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from diffuserve.api.auth import access
from diffuserve.cli.servers.serve import _invitation
from diffuserve.cli.servers.server import RunningServer, running_server
from diffuserve.cli.servers.stop import chosen_of
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.tenant import PlanOverrides, Role
from diffuserve.jobs.security.keys import make_key
from diffuserve.settings import Settings
from diffuserve.wiring.control import open_store
from diffuserve.wiring.data_folder import locked, servers_on, shared


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data", port=0, prompt_filter="none")


def test_a_data_folder_serves_one_server_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path / "data"), pytest.raises(InvalidParams, match=f"process {os.getpid()}"):
        locked(tmp_path / "data").__enter__()
    with locked(tmp_path / "data"):
        pass


def test_servers_that_share_a_data_folder_are_found_while_they_run(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    assert servers_on(folder) == []
    with locked(folder):
        assert servers_on(folder) == [os.getpid()]
    with shared(folder):
        (note,) = (folder / "servers").iterdir()
        with shared(folder):
            assert servers_on(folder) == [os.getpid()], "one process with two servers"
        (folder / "servers" / f"{note.name}0").write_text(f"{os.getpid()}0")  # of one that was killed
        (folder / "servers" / "elsewhere-1").hardlink_to(note)  # of one on another machine
        assert servers_on(folder) == [os.getpid()]
    assert servers_on(folder) == []


def test_the_only_server_is_stopped_and_one_of_several_must_be_named() -> None:
    folder = Path("data")
    assert chosen_of([7], None, folder) == 7
    assert chosen_of([7, 9], 9, folder) == 9
    with pytest.raises(InvalidParams, match="choose from 7, 9"):
        chosen_of([7, 9], None, folder)
    with pytest.raises(InvalidParams, match="no server on data"):
        chosen_of([7], 8, folder)


async def test_the_api_is_served_within_the_block(settings: Settings) -> None:
    async with running_server(settings) as server, httpx.AsyncClient(trust_env=False) as http:
        assert not server.plane.has_auth
        assert (await http.get(f"{server.address}/v1/jobs")).status_code == 200


async def test_a_server_with_keys_requires_them(settings: Settings) -> None:
    async with open_store(settings) as store:
        _, secret = await store.keys.create(Role.OPERATOR)
    async with running_server(settings) as server, httpx.AsyncClient(trust_env=False) as http:
        assert server.plane.has_auth
        assert (await http.get(f"{server.address}/v1/jobs")).status_code == 401
        headers = {"authorization": f"Bearer {secret}"}
        assert (await http.get(f"{server.address}/v1/jobs", headers=headers)).status_code == 200
    async with running_server(settings, no_auth=True) as server, httpx.AsyncClient(trust_env=False) as http:
        assert (await http.get(f"{server.address}/v1/jobs")).status_code == 200


async def test_every_origin_is_allowed_only_where_keys_are_required(settings: Settings) -> None:
    open_to_all = settings.model_copy(update={"allowed_origins": ("*",)})
    with pytest.raises(InvalidParams, match="allowed_origins='\\*': every page"):
        async with running_server(open_to_all):
            pass
    async with open_store(settings) as store:
        await store.keys.create(Role.OPERATOR)
    async with running_server(open_to_all) as server:
        assert server.plane.has_auth


async def test_a_first_key_is_enforced_within_a_second(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [time.monotonic()]
    monkeypatch.setattr(access, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    async with running_server(settings) as server, httpx.AsyncClient(trust_env=False) as http:
        assert (await http.get(f"{server.address}/v1/jobs")).status_code == 200
        async with open_store(settings) as store:
            _, secret = await store.keys.create(Role.OPERATOR)
        clock[0] += 1.0
        assert (await http.get(f"{server.address}/v1/jobs")).status_code == 401
        assert "the first API key was created" in caplog.text
        headers = {"authorization": f"Bearer {secret}"}
        assert (await http.get(f"{server.address}/v1/jobs", headers=headers)).status_code == 200


async def test_revoking_the_last_key_opens_nothing(settings: Settings) -> None:
    async with open_store(settings) as store:
        key, secret = await store.keys.create(Role.OPERATOR)
        await store.keys.revoke(key.id)
    for host in ("127.0.0.1", "0.0.0.0"):
        there = settings.model_copy(update={"host": host})
        async with running_server(there) as server, httpx.AsyncClient(trust_env=False) as http:
            assert server.plane.has_auth
            for headers in ({}, {"authorization": f"Bearer {secret}"}):
                response = await http.get(f"{server.address}/v1/jobs", headers=headers)
                assert response.status_code == 401


@pytest.mark.parametrize("no_auth", [False, True])
async def test_an_open_server_says_so_loudly(
    settings: Settings, no_auth: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_server(settings, no_auth) as server:
        [warning] = [record for record in caplog.records if "OPEN SERVER" in record.getMessage()]
    assert warning.levelname == "WARNING"
    assert server.address in warning.getMessage()
    assert ("--no-auth was given" if no_auth else "keys create") in warning.getMessage()


async def test_a_server_that_requires_keys_warns_of_nothing(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_store(settings) as store:
        await store.keys.create(Role.OPERATOR)
    async with running_server(settings):
        pass
    assert "OPEN SERVER" not in caplog.text


async def test_a_tenant_with_the_name_of_operators_is_warned_of(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_store(settings) as store:
        await store.keys._writer.run(make_key(Role.TENANT, "operator", None, PlanOverrides()))
    async with running_server(settings):
        assert "sees what operators submit" in caplog.text


async def test_the_address_listened_on_and_allowed_names_are_the_servers_own(settings: Settings) -> None:
    named = settings.model_copy(update={"host": "localhost", "allowed_hosts": ("gpu-box",)})
    async with running_server(named) as server, httpx.AsyncClient(trust_env=False) as http:
        for host, status in (("gpu-box:80", 200), ("localhost", 200), ("evil.example", 403)):
            response = await http.get(f"{server.address}/healthz", headers={"host": host})
            assert response.status_code == status, host


async def test_other_machines_are_served_only_with_keys_or_without_auth(settings: Settings) -> None:
    public = settings.model_copy(update={"host": "0.0.0.0"})
    with pytest.raises(InvalidParams, match="no API key yet"):
        async with running_server(public):
            raise AssertionError("it must not start")
    async with running_server(public, no_auth=True) as server:
        assert server.address.startswith("http://127.0.0.1:")
    async with open_store(public) as store:
        await store.keys.create(Role.OPERATOR)
    async with running_server(public) as server:
        assert server.plane.has_auth


@pytest.mark.parametrize(
    ("address", "has_auth", "shown", "hidden"),
    [
        ("http://127.0.0.1:8000", False, "diffuserve submit", "--server"),
        ("http://127.0.0.1:9000", False, "--server http://127.0.0.1:9000", "Bearer"),
        ("http://127.0.0.1:8000", True, "authorization: Bearer KEY", "--server"),
    ],
)
def test_the_invitation_fits_the_server(address: str, has_auth: bool, shown: str, hidden: str) -> None:
    server = RunningServer(cast(Any, SimpleNamespace(has_auth=has_auth)), address)
    assert shown in _invitation(server)
    assert hidden not in _invitation(server)
    assert f"curl {address}/generate" in _invitation(server)
