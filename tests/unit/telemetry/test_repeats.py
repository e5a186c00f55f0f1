"""Lines that are logged once a minute, with a count."""

import logging
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from diffuserve.telemetry.log_fields import FIELDS, once_a_minute
from diffuserve.telemetry.repeats import RepeatFilter

FOREVER = 3_600.0
KEY = ("repeats", "refused %s")


class Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, object]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.getMessage(), vars(record).get(FIELDS)))


@pytest.fixture
def handler() -> Collector:
    return Collector()


@pytest.fixture
def repeats(handler: Collector) -> RepeatFilter:
    return RepeatFilter(handler, FOREVER)


@pytest.fixture
def log(handler: Collector, repeats: RepeatFilter) -> Iterator[logging.Logger]:
    log = logging.getLogger("repeats")
    handler.addFilter(repeats)
    log.addHandler(handler)
    log.propagate = False
    yield log
    log.removeHandler(handler)


def test_the_first_line_is_logged_at_once_and_the_others_once_a_minute(
    log: logging.Logger, handler: Collector, repeats: RepeatFilter
) -> None:
    for number in range(4):
        log.warning("refused %s", number, extra=once_a_minute(client="c"))
    assert handler.lines == [("refused 0", {"client": "c"})]
    repeats.end_period(KEY)
    assert handler.lines[1:] == [("refused 3", {"client": "c", "times": 3})]
    log.warning("refused %s", 4, extra=once_a_minute())
    assert len(handler.lines) == 2, "the next minute has begun"
    repeats.end_period(KEY)
    assert handler.lines[2:] == [("refused 4", {"times": 1})]


def test_after_a_quiet_minute_the_next_line_is_logged_at_once(
    log: logging.Logger, handler: Collector, repeats: RepeatFilter
) -> None:
    log.warning("refused %s", 1, extra=once_a_minute())
    repeats.end_period(KEY)
    log.warning("refused %s", 2, extra=once_a_minute())
    assert handler.lines == [("refused 1", {}), ("refused 2", {})]


def test_other_lines_are_not_held_back(log: logging.Logger, handler: Collector) -> None:
    log.warning("refused %s", 1, extra=once_a_minute())
    log.warning("refused differently", extra=once_a_minute())
    log.warning("refused %s", 2)
    log.warning("refused %s", 3)
    assert [message for message, _ in handler.lines] == [
        "refused 1", "refused differently", "refused 2", "refused 3",
    ]  # fmt: skip


def test_processes_without_a_log_hold_repeats_back_too() -> None:
    code = (
        "import logging\n"
        "from diffuserve.telemetry.log_fields import once_a_minute\n"
        "from diffuserve.telemetry.repeats import limit_repeats\n"
        "limit_repeats()\n"
        "for _ in range(9): logging.getLogger('a').warning('again', extra=once_a_minute())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "again\n"


def test_the_minute_ends_by_itself(handler: Collector) -> None:
    repeats = RepeatFilter(handler, 0.001)
    record = logging.makeLogRecord({"name": "repeats", "msg": "m", "is_repeated": True})
    held = 0
    while not handler.lines:  # until one that was held back is logged by the timer's thread
        held += not repeats.filter(record)
        time.sleep(0)  # or this loop keeps the interpreter from the timer's thread
    assert held > 0
