"""The running control plane of `api` and `serve`, and the lock of its data folder."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from diffuserve.cli.data_folder import locked
from diffuserve.cli.serve import _invitation
from diffuserve.cli.server import RunningServer, running_server
from diffuserve.cli.wiring.control import open_store
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.tenant import Role
from diffuserve.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data", port=0, prompt_filter="none")


def test_a_data_folder_serves_one_server_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path / "data"), pytest.raises(InvalidParams, match=f"process {os.getpid()}"):
        locked(tmp_path / "data").__enter__()
    with locked(tmp_path / "data"):
        pass


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
