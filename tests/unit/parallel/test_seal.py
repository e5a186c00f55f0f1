"""Messages are accepted from those who know the secret, once and in their place."""

import socket
import threading
from collections.abc import Iterator

import pytest

from diffuserve.parallel.seal import NotProven, Seal, SealedConnection
from support.waiting import HANG_SECONDS

SECRET = b"of this group"


@pytest.mark.parametrize(
    "reader",
    [Seal(b"another", b"commands"), Seal(SECRET, b"images"), Seal(SECRET, b"comm", b"ands")],
    ids=["secret", "purpose", "bounds"],
)
def test_a_message_of_another_secret_or_purpose_does_not_pass(reader: Seal) -> None:
    sealed = Seal(SECRET, b"commands").close(b"step", 1)
    assert Seal(SECRET, b"commands").open(sealed, 1) == b"step"
    with pytest.raises(NotProven):
        reader.open(sealed, 1)


@pytest.mark.parametrize(("changed", "place"), [(b"step", 2), (b"stop", 1), (b"", 1)])
def test_a_message_that_was_moved_or_changed_does_not_pass(changed: bytes, place: int) -> None:
    seal = Seal(SECRET, b"commands")
    sealed = seal.close(b"step", 1)
    with pytest.raises(NotProven):
        seal.open(changed + sealed[4:], place)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    client, server = socket.socketpair()
    yield client, server
    client.close()
    server.close()


def connected(client: socket.socket, server: socket.socket) -> tuple[SealedConnection, SealedConnection]:
    opened: list[SealedConnection] = []
    other = threading.Thread(target=lambda: opened.append(SealedConnection(server, SECRET, is_server=True)))
    other.start()
    own = SealedConnection(client, SECRET)
    other.join(HANG_SECONDS)
    return own, opened[0]


def test_connections_carry_messages_both_ways(ends: tuple[socket.socket, socket.socket]) -> None:
    client, server = connected(*ends)
    for number in range(3):
        client.send(b"asked %d" % number)
        assert server.receive() == b"asked %d" % number
        server.send(b"answered")
        assert client.receive() == b"answered"


def test_a_message_that_comes_twice_or_comes_back_is_refused(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    client, server = connected(*ends)
    client.send(b"asked")
    sent = ends[1].recv(65_536)
    for repeated, reader in ((sent * 2, server), (sent, client)):
        ends[0 if reader is server else 1].sendall(repeated)
        if reader is server:
            assert reader.receive() == b"asked"
        with pytest.raises(NotProven):
            reader.receive()


@pytest.mark.parametrize("words", [b"x" * 64, b"GET / HTTP/1.1\r\n" + b"\r\n" * 24, b""])
def test_a_stranger_is_refused(words: bytes, ends: tuple[socket.socket, socket.socket]) -> None:
    stranger, server = ends
    stranger.sendall(words)
    stranger.shutdown(socket.SHUT_WR)
    with pytest.raises((NotProven, ConnectionResetError)):
        SealedConnection(server, SECRET, is_server=True)


def test_a_stranger_that_says_nothing_is_given_up(ends: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(TimeoutError):
        SealedConnection(ends[1], SECRET, is_server=True, within=0.01)


def test_a_message_that_is_said_to_be_huge_is_not_waited_for(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    _, server = connected(*ends)
    ends[0].sendall(b"\xff\xff\xff\xff")
    with pytest.raises(NotProven, match="none is longer"):
        server.receive()
