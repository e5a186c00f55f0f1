"""The agent hears which phase of its start an engine is in, and how much it has read."""

from typing import cast

import pytest

from diffuserve.engine_process.agent_link import AgentLink
from diffuserve.engine_process.model import load_reporter
from diffuserve.engine_process.model.load_reporter import LoadReporter
from diffuserve.protocol.messages import EngineLoading, Message


class _Link:
    """Stands for the connection to the agent: keeps the messages that are sent."""

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def send(self, message: Message) -> None:
        self.sent.append(message)


def loading(link: _Link) -> list[EngineLoading]:
    return [message for message in link.sent if isinstance(message, EngineLoading)]


def test_bytes_are_reported_as_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_reporter, "_REPORT_SECONDS", 0.0)
    link = _Link()
    reporter = LoadReporter(cast(AgentLink, link))
    reporter.begin_weights("tiny-flux")
    for size in (1_000, 2_000):
        reporter.add(size)
    first = link.sent[0]
    assert isinstance(first, EngineLoading)
    assert (first.phase, first.bytes_read) == ("weights", 0)
    assert first.bytes_total > 1_000_000
    assert [message.bytes_read for message in link.sent if isinstance(message, EngineLoading)] == [
        0,
        1_000,
        3_000,
    ]


def test_many_small_tensors_are_not_reported_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_reporter, "_REPORT_SECONDS", 1e9)
    link = _Link()
    reporter = LoadReporter(cast(AgentLink, link))
    reporter.begin_weights("tiny-flux")
    for _ in range(100):
        reporter.add(1)
    reporter.begin("warm-up")
    assert [message.phase for message in link.sent if isinstance(message, EngineLoading)] == [
        "weights",
        "warm-up",
    ]
