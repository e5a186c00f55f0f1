"""The engine process's end of its connection, which ends the process with the agent."""

import os
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from diffuserve.engine_process.agent_link import AgentLink
from diffuserve.protocol.crash_record import read_crash_record
from diffuserve.protocol.messages import (
    AddJob,
    EngineHeartbeat,
    StepProgress,
    StopEngine,
    ToEngine,
    decode,
    encode,
)
from support.waiting import HANG_SECONDS


@pytest.fixture
def exit_codes(monkeypatch: pytest.MonkeyPatch) -> "queue.Queue[int]":
    """The exit codes with which the process would have ended; the thread that ends it stops."""
    codes: queue.Queue[int] = queue.Queue()

    def end(code: int) -> None:
        codes.put(code)
        raise SystemExit

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(threading, "excepthook", lambda _arguments: None)  # pytest's reports `SystemExit`
    return codes


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "engine.sock"))
        listener.listen()
        listener.settimeout(HANG_SECONDS)
        yield listener


@pytest.fixture
def link(agent: socket.socket, tmp_path: Path, exit_codes: "queue.Queue[int]") -> Iterator[AgentLink]:
    """A connected link, whose threads end with the test."""
    link = AgentLink(tmp_path / "engine.sock")
    yield link
    with suppress(OSError):  # the agent has closed it already
        link._socket.shutdown(socket.SHUT_RDWR)
    for thread in threading.enumerate():
        if thread.name in ("agent-link", "heartbeat"):
            thread.join(HANG_SECONDS)
    link._socket.close()


@pytest.fixture
def connection(agent: socket.socket, link: AgentLink) -> Iterator[socket.socket]:
    accepted, _ = agent.accept()
    accepted.settimeout(HANG_SECONDS)
    with accepted:
        yield accepted


def test_messages_of_many_threads_do_not_mix(link: AgentLink, connection: socket.socket) -> None:
    def send(thread: int) -> None:
        for step in range(100):
            link.send(StepProgress(attempt=f"j{thread}", phase="denoise" * 50, step=step))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    with connection.makefile("rb") as lines:
        received = [decode(lines.readline()) for _ in range(400)]
    for thread in threads:
        thread.join()
    for number in range(4):
        steps = [
            message.step
            for message in received
            if isinstance(message, StepProgress) and message.attempt == f"j{number}"
        ]
        assert steps == list(range(100))


def test_messages_that_are_sent_together_arrive_in_their_order(
    link: AgentLink, connection: socket.socket
) -> None:
    sent = [StepProgress(attempt=f"j{number}", phase="denoise") for number in range(3)]
    link.send(*sent)
    with connection.makefile("rb") as lines:
        assert [decode(lines.readline()) for _ in sent] == sent


def test_every_message_of_the_agent_is_handled_in_order(link: AgentLink, connection: socket.socket) -> None:
    handled: queue.Queue[ToEngine] = queue.Queue()
    link.listen(handled.put)
    sent: list[ToEngine] = [AddJob(attempt="j1-1", input={"prompt": "ü"}, folder="/f"), StopEngine()]
    connection.sendall(b"".join(encode(message) for message in sent))
    assert [handled.get(timeout=HANG_SECONDS) for _ in sent] == sent


def test_a_message_is_sent_again_and_again(link: AgentLink, connection: socket.socket) -> None:
    counts = iter(range(1_000_000))
    link.send_every(0.001, lambda: EngineHeartbeat(num_moves=next(counts), num_unfinished=0))
    with connection.makefile("rb") as lines:
        received = [decode(lines.readline()) for _ in range(3)]
    assert [message.num_moves for message in received if isinstance(message, EngineHeartbeat)] == [0, 1, 2]


def test_the_process_ends_with_its_agent(
    link: AgentLink, connection: socket.socket, exit_codes: "queue.Queue[int]"
) -> None:
    link.listen(lambda _message: None)
    connection.shutdown(socket.SHUT_RDWR)
    assert exit_codes.get(timeout=HANG_SECONDS) == 1


def test_a_message_that_cannot_be_sent_ends_the_process(
    link: AgentLink, connection: socket.socket, exit_codes: "queue.Queue[int]"
) -> None:
    connection.close()
    with pytest.raises(SystemExit):
        send_forever(link)
    assert exit_codes.get_nowait() == 1


def send_forever(link: AgentLink) -> None:
    while True:  # the first messages may still fit into the socket's buffer
        link.send(StepProgress(attempt="j", phase="denoise"))


def test_the_crash_record_lies_beside_the_socket(link: AgentLink, tmp_path: Path) -> None:
    link.crash_record.note(["j1-1"])
    assert read_crash_record(tmp_path) == {"j1-1"}
