"""A worker that its server will never accept ends before an engine starts."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest

from diffuserve.domain.tenant import Role
from diffuserve.settings import Settings
from support.command import Invoke
from support.server_thread import ServerThread
from support.waiting import block_until


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """A server that requires keys."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("closed"), port=0, prompt_filter="none")
    with ServerThread(settings, has_worker=False) as server:
        server.call(server.store.keys.create(Role.OPERATOR))
        # The first key is enforced within a second.
        block_until(lambda: httpx.get(f"{server.address}/v1/jobs").status_code == 401)
        yield server


@pytest.fixture
def started(tmp_path: Path) -> Path:
    """The file that the engine would make."""
    return tmp_path / "engine-started"


def refused(invoke: Invoke, started: Path, *arguments: str) -> str:
    """Return what a worker says that ends at once."""
    run = invoke("worker", "--engine-command", f"sh -c 'touch {started}'", *arguments)
    assert run.code == 2
    assert not started.exists()
    [told] = [line for line in run.err.splitlines() if "diffuserve.api" not in line]  # the server logs too
    assert told.startswith("error: ")
    return told


@pytest.mark.parametrize("replicas", ["1", "2"])
def test_a_missing_key_ends_a_worker_with_the_ways_to_give_one(
    closed: ServerThread, invoke: Invoke, started: Path, replicas: str
) -> None:
    told = refused(invoke, started, "--server", closed.address, "--replicas", replicas)
    assert "missing API key" in told
    for way in ("--key", "--key-file", "DIFFUSERVE_API_KEY", "diffuserve keys create --role worker"):
        assert way in told


def test_a_wrong_key_and_one_of_another_role_end_a_worker(
    closed: ServerThread, invoke: Invoke, started: Path
) -> None:
    _, theirs = closed.call(closed.store.keys.create(Role.TENANT, tenant_id="ada"))
    server = ("--server", closed.address)
    assert "; give a worker's key" in refused(invoke, started, *server, "--key", "wrong")
    assert "with the role worker; give a worker's key" in refused(invoke, started, *server, "--key", theirs)


class _OtherSite(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def test_a_url_that_is_no_diffuserve_server_ends_a_worker(invoke: Invoke, started: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _OtherSite) as other:
        Thread(target=other.serve_forever, daemon=True).start()
        told = refused(invoke, started, "--server", f"http://127.0.0.1:{other.server_port}")
        other.shutdown()
    assert "no diffuserve server: http://127.0.0.1" in told
    assert "--server or DIFFUSERVE_SERVER" in told
