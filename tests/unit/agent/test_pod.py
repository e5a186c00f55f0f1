"""A worker annotates its own pod, tried on an emulator of Kubernetes' API."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import certifi
import httpx
import pytest

from diffuserve.agent.pod import Pod
from diffuserve.domain.errors import ServerUnavailable
from support.ports import free_port

# The emulator reads its own list of resources in a way that Python will drop.
pytestmark = pytest.mark.filterwarnings("ignore:read_binary is deprecated:DeprecationWarning")
PODS = "/api/v1/namespaces/diffuserve/pods"


@pytest.fixture
async def api() -> AsyncGenerator[httpx.AsyncClient]:
    """Yield a client of an API that has the pod `worker-1`."""
    from kmock import KubernetesEmulator, Server  # here: importing it takes half a second

    async with KubernetesEmulator() as emulator:
        emulator.resources.load_bundled()
        async with Server(emulator) as server, httpx.AsyncClient(base_url=str(server.url)) as client:
            metadata = {"name": "worker-1", "namespace": "diffuserve", "annotations": {"kept": "yes"}}
            (await client.post(PODS, json={"metadata": metadata})).raise_for_status()
            yield client


@pytest.fixture
def account(tmp_path: Path) -> Path:
    files = {"token": "first\n", "namespace": "diffuserve\n", "ca.crt": Path(certifi.where()).read_text()}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


async def test_an_annotation_is_written_beside_the_others(api: httpx.AsyncClient, account: Path) -> None:
    await Pod("worker-1", account, str(api.base_url).rstrip("/")).annotate("cost", "200")
    pod = json.loads((await api.get(f"{PODS}/worker-1")).text)
    assert pod["metadata"]["annotations"] == {"kept": "yes", "cost": "200"}


async def test_a_pod_that_is_gone_is_told_by_its_name(api: httpx.AsyncClient, account: Path) -> None:
    with pytest.raises(ServerUnavailable, match="pod worker-2"):
        await Pod("worker-2", account, str(api.base_url).rstrip("/")).annotate("cost", "0")


async def test_an_api_that_is_away_is_told(account: Path) -> None:
    with pytest.raises(ServerUnavailable, match="pod worker-1"):
        await Pod("worker-1", account, f"http://127.0.0.1:{free_port()}").annotate("cost", "0")


async def test_without_an_account_the_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(ServerUnavailable, match="no service account in"):
        await Pod("worker-1", tmp_path / "none").annotate("cost", "0")
