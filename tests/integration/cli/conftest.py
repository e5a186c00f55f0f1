"""A real server for the commands that use one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from diffuserve.settings import Settings
from support.command import Invoke, invoker
from support.server_thread import ServerThread


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """A server with a worker, shared by the tests of this folder."""
    folder = tmp_path_factory.mktemp("server")
    with ServerThread(Settings(data_dir=folder, port=0, prompt_filter="none")) as server:
        yield server


@pytest.fixture
def invoke(
    server: ServerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Invoke:
    """Run a command in this process, with the server as its own and an empty working folder."""
    monkeypatch.setenv("DIFFUSERVE_SERVER", server.address)
    monkeypatch.chdir(tmp_path)
    return invoker(monkeypatch, capsys)
