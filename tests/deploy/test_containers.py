"""Images are built and run as the documents say: small, not as root, healthy, and stopped without loss."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.podman import BASE, build, make_base, once, podman, skip_without_podman, start
from support.ports import free_port
from support.waiting import block_until

ROOT = Path(__file__).parents[2]
CONTROL, WORKER = "diffuserve-control-test", "diffuserve-worker-test"
MAX_BYTES = 500_000_000

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> None:
    skip_without_podman()
    make_base(tmp_path_factory.mktemp("base"))
    base = f"--build-arg=PYTHON={BASE}"
    build(ROOT / "deploy/docker/Dockerfile.control", CONTROL, ROOT, base)
    # Torch's own index is not reached here, but for the one wheel of it that this machine may have.
    build(
        ROOT / "deploy/docker/Dockerfile.worker", WORKER, ROOT,
        base, "--build-arg=TORCH=cpu", "--build-arg=COMPILER=", "--env=PIP_FIND_LINKS=/opt/wheels",
    )  # fmt: skip


@pytest.fixture
def started() -> Iterator[list[str]]:
    containers: list[str] = []
    yield containers
    for container in containers:
        podman("rm", "--force", "--time", "0", container, check=False)


def ready(url: str, path: str, status: int) -> bool:
    try:
        return httpx.get(url + path).status_code == status
    except httpx.TransportError:
        return False


def test_a_worker_draws_for_a_control_plane_in_a_container(images: None, started: list[str]) -> None:
    port, metrics = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    assert int(podman("image", "inspect", "--format", "{{.Size}}", CONTROL)) <= MAX_BYTES
    volume = podman("volume", "create")
    data = [f"--volume={volume}:/var/lib/diffuserve"]
    keys: dict[str, str] = {}
    for role, owner in (("worker", ()), ("tenant", ("--tenant", "me"))):
        keys[role] = once(CONTROL, "keys", "create", "--role", role, *owner, options=data)
    control = start(CONTROL, {"DIFFUSERVE_PORT": str(port)}, options=data)
    started.append(control)
    block_until(lambda: ready(url, "/healthz", 200))
    assert ready(url, "/readyz", 503), "there is no worker yet"
    assert "uid=10001" in podman("exec", control, "id")
    worker = start(
        WORKER,
        {"DIFFUSERVE_SERVER": url, "DIFFUSERVE_API_KEY": keys["worker"]},
        "--metrics-port", str(metrics), "--model", "tiny-flux",
    )  # fmt: skip
    started.append(worker)
    block_until(lambda: ready(url, "/readyz", 200))
    assert "diffusion_worker_state" in httpx.get(f"http://127.0.0.1:{metrics}/metrics").text
    job = httpx.post(
        f"{url}/v1/jobs",
        json={"input": {"prompt": "a red circle"}},
        headers={"authorization": f"Bearer {keys['tenant']}", "prefer": "wait=60"},
        timeout=90,
    ).json()
    assert job["status"] == "succeeded", job
    for container in (worker, control):
        begin = time.monotonic()
        podman("stop", "--time", "60", container)
        assert time.monotonic() - begin < 60, "stopped by its own decision"
        assert podman("inspect", "--format", "{{.State.ExitCode}}", container) == "0"
    podman("volume", "rm", volume, check=False)
