"""The lines of the log: text and JSON, their values, levels, colors, and tracebacks."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.contextvars import bind_contextvars, clear_contextvars

from diffuserve.telemetry.log_config import LogConfig, LogFormat, LogLevel
from diffuserve.telemetry.log_fields import fields
from diffuserve.telemetry.logs import configure_logs
from diffuserve.telemetry.redaction import redacted_logs

log = logging.getLogger("diffuserve.some.module")
library = logging.getLogger("some_library")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _empty_context() -> Iterator[None]:
    clear_contextvars()
    yield
    clear_contextvars()


def lines_of(config: LogConfig, stream: io.StringIO | None = None) -> io.StringIO:
    stream = stream or io.StringIO()
    configure_logs(config, stream)
    return stream


def as_json(level: LogLevel = LogLevel.INFO) -> io.StringIO:
    return lines_of(LogConfig(log_level=level, log_format=LogFormat.JSON))


def only_line(stream: io.StringIO) -> dict[str, Any]:
    [line] = stream.getvalue().splitlines()
    values: dict[str, Any] = json.loads(line)
    return values


def test_a_line_of_json_has_its_values_beside_the_message() -> None:
    stream = as_json()
    log.warning("%d jobs %s", 2, "ran", extra=fields(tenant="ada", seconds=0.5, error=None))
    line = only_line(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "2 jobs ran",
        "level": "warning",
        "logger": "diffuserve.some.module",
        "tenant": "ada",
        "seconds": 0.5,
    }


def test_a_line_of_text_is_plain_where_nobody_looks_at_a_terminal() -> None:
    stream = lines_of(LogConfig())
    log.info("job finished", extra=fields(tenant="ada", seconds=0.5))
    [line] = stream.getvalue().splitlines()
    assert "\x1b" not in line
    for part in ("info", "job finished", "tenant=ada", "seconds=0.5", "diffuserve.some.module"):
        assert part in line


@pytest.mark.parametrize(("no_color", "has_colors"), [(None, True), ("1", False)])
def test_a_terminal_shows_colors_unless_it_is_asked_not_to(
    no_color: str | None, has_colors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    stream = lines_of(LogConfig(), Terminal())
    log.info("job finished")
    assert ("\x1b" in stream.getvalue()) is has_colors


def test_the_context_of_a_request_is_on_each_of_its_lines() -> None:
    stream = as_json()
    bind_contextvars(request_id="r1")
    log.info("ours")
    library.warning("a library's")
    assert [json.loads(line)["request_id"] for line in stream.getvalue().splitlines()] == ["r1", "r1"]


@pytest.mark.parametrize("level", LogLevel)
def test_lines_below_the_level_are_left_out_and_libraries_never_log_less_than_warnings(
    level: LogLevel,
) -> None:
    stream = as_json(level)
    for logger in (log, library):
        for name in LogLevel:
            getattr(logger, name)("a line")
    logged = [(line["logger"], line["level"]) for line in map(json.loads, stream.getvalue().splitlines())]
    names = list(LogLevel)
    assert logged == [
        *((log.name, name) for name in names[names.index(level) :]),
        *((library.name, name) for name in names[max(names.index(level), names.index(LogLevel.WARNING)) :]),
    ]


@pytest.mark.parametrize("form", LogFormat)
def test_a_redacted_traceback_stays_redacted(form: LogFormat) -> None:
    stream = lines_of(LogConfig(log_format=form))
    secret = "a secret"
    with redacted_logs():
        try:
            raise ValueError(secret)
        except ValueError:
            log.exception("it failed")
    assert "ValueError" in stream.getvalue()
    assert "test_logs.py" in stream.getvalue()
    assert secret not in stream.getvalue()


def test_text_of_others_neither_commands_a_terminal_nor_forges_a_line() -> None:
    stream = lines_of(LogConfig())
    hostile = "boom\x1b]0;title\x07\r\x9b2J\u202ereversed\ninfo all is well"
    try:
        raise ValueError(hostile)
    except ValueError:
        log.exception("failed: %s", hostile, extra=fields(code=hostile))
    first, *traceback = stream.getvalue().splitlines()
    for part in ("failed: boom\\u001b]0;title\\u0007\\u000d\\u009b2J\\u202ereversed\\u000ainfo", "code="):
        assert part in first
    assert len(traceback) > 3, "a traceback keeps its lines"
    assert all(character.isprintable() for line in (first, *traceback) for character in line)


def test_a_traceback_in_json_is_one_line() -> None:
    stream = as_json()
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("it failed")
    assert "ValueError: why" in only_line(stream)["exception"]


@pytest.mark.parametrize("word", ["json", "JSON"])
def test_words_are_accepted_in_any_case(word: str) -> None:
    assert LogFormat(word) is LogFormat.JSON


def test_what_was_configured_before_is_replaced() -> None:
    first, second = as_json(), as_json()
    log.info("a line")
    assert first.getvalue() == ""
    assert only_line(second)["event"] == "a line"
