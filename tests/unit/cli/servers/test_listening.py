"""The addresses of a server: what it listens on, and the URLs that people are told."""

import socket
from contextlib import closing

import pytest

from diffuserve.cli.servers import listening
from diffuserve.cli.servers.listening import accept, address_of, bind, description_of, listen
from diffuserve.domain.errors import InvalidParams


def can_connect(listener: socket.socket) -> bool:
    with socket.socket(listener.family, socket.SOCK_STREAM) as client:
        return client.connect_ex(listener.getsockname()[:2]) == 0


def test_a_bound_socket_has_its_address_and_accepts_nobody_yet() -> None:
    with closing(bind("127.0.0.1", 0)) as listener:
        assert address_of(listener).startswith("http://127.0.0.1:")
        assert not can_connect(listener)
        accept(listener)
        assert can_connect(listener)


def test_a_port_that_another_program_took_meanwhile_is_refused() -> None:
    with closing(bind("127.0.0.1", 0)) as slow:
        port = slow.getsockname()[1]
        with listen("127.0.0.1", port), pytest.raises(InvalidParams, match=f"port={port}"):
            accept(slow)


def test_a_server_on_one_address_is_described_by_its_url() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert description_of(listener) == address_of(listener)


def test_a_server_on_every_address_says_so_and_names_urls_that_work() -> None:
    with listen("0.0.0.0", 0) as listener:
        port = listener.getsockname()[1]
        description = description_of(listener)
        assert description.startswith(
            f"0.0.0.0:{port} (every address): http://127.0.0.1:{port} on this machine"
        )
        for url in (word for word in description.split() if word.startswith("http://")):
            with socket.create_connection((url.removeprefix("http://").split(":")[0], port)):
                pass


@pytest.mark.parametrize(
    ("outside", "end"), [("10.0.0.5", ", http://10.0.0.5:{port} from others"), (None, " on this machine")]
)
def test_other_machines_are_told_the_address_on_the_way_to_them(
    outside: str | None, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "_outside_address", lambda _family: outside)
    with listen("0.0.0.0", 0) as listener:
        assert description_of(listener).endswith(end.format(port=listener.getsockname()[1]))


def test_a_machine_without_a_network_has_no_outside_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(listening._ELSEWHERE, socket.AF_INET, "255.255.255.255")
    assert listening._outside_address(socket.AF_INET) is None
