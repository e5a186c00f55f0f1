"""A real server for clients, and a proxy before it that injects faults."""

from collections.abc import Iterator

import pytest

from diffuserve.settings import Settings
from support.faulty_proxy import FaultyProxy
from support.server_thread import ServerThread


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """A server with a worker, shared by the tests of a module."""
    folder = tmp_path_factory.mktemp("server")
    with ServerThread(Settings(data_dir=folder, port=0, prompt_filter="none")) as server:
        yield server


@pytest.fixture
def proxy(server: ServerThread) -> Iterator[FaultyProxy]:
    with FaultyProxy(server.address) as proxy:
        yield proxy
