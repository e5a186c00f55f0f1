"""An outage is told of at once, then ever more rarely, and when it is over."""

import logging

import pytest

from diffuserve.domain.errors import Conflict, ServerUnavailable, StorageRefused
from diffuserve.telemetry.outage_log import OutageLog

AWAY = ServerUnavailable("http://server does not respond (Connection refused)")


class Watching:
    """A log of outages by a clock that the test turns."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO")
        self.caplog = caplog
        self.now = 1_000.0
        self.log = OutageLog("http://server", lambda: self.now)

    def fail_for(self, seconds: int) -> None:
        """Fail each second."""
        for _second in range(seconds):
            self.log.note(AWAY)
            self.now += 1.0

    @property
    def lines(self) -> list[str]:
        return [record.getMessage() for record in self.caplog.records]


@pytest.fixture
def watching(caplog: pytest.LogCaptureFixture) -> Watching:
    return Watching(caplog)


def test_an_outage_is_told_of_at_once_and_its_end_with_its_length(watching: Watching) -> None:
    watching.log.note(None)
    assert watching.lines == []
    watching.log.note(AWAY)
    assert watching.lines == [f"{AWAY}; trying again until it is back"]
    watching.now += 25.0
    watching.log.note(AWAY)
    watching.log.note(None)
    watching.log.note(None)
    assert watching.lines[1:] == ["http://server is back after 25 s"]


def test_reminders_become_rarer(watching: Watching) -> None:
    watching.fail_for(3_600)
    assert watching.lines[1:] == [
        f"{AWAY}; still so after {after}" for after in ("30 s", "90 s", "4 min", "8 min", "16 min", "32 min")
    ]


def test_a_refusal_is_a_response(watching: Watching) -> None:
    watching.log.note(AWAY)
    watching.now += 3.0
    watching.log.note(Conflict("not now"))
    assert watching.lines[-1] == "http://server is back after 3 s"
    watching.log.note(StorageRefused("no such bucket"))
    assert len(watching.lines) == 2


def test_requests_of_which_some_fail_do_not_fill_the_log(watching: Watching) -> None:
    for _second in range(600):
        watching.log.note(AWAY)
        watching.now += 0.5
        watching.log.note(None)
        watching.now += 0.5
    assert len(watching.lines) == 2 * 5, "an outage and its end, at 0, 30, 90, 210 and 450 s"


def test_an_outage_long_after_another_is_told_of_at_once(watching: Watching) -> None:
    watching.fail_for(100)
    watching.log.note(None)
    watching.now += 61.0
    watching.log.note(AWAY)
    assert watching.lines[-1].endswith("trying again until it is back")


def test_what_is_worse_is_told_of_louder_until_its_end(caplog: pytest.LogCaptureFixture) -> None:
    store = OutageLog("the store", lambda: 0.0, meanwhile="results wait", level=logging.ERROR)
    store.failed("it refuses")
    store.succeeded()
    told = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert told == [
        (logging.ERROR, "it refuses; results wait"),
        (logging.WARNING, "the store is back after 0 s"),
    ]
