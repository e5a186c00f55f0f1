"""The log of every process: lines of text for people or JSON for machines, on stderr.

Modules and libraries write through the standard library's `logging`, and structlog renders all of it here.
A line's values are its `extra`, made by `log_fields`; what holds for a whole request, such as its id, is
bound by `log_context`.
"""

import logging
from typing import TYPE_CHECKING, Any, TextIO

import orjson

from diffuserve.domain.text.visible_text import visible, visible_line
from diffuserve.telemetry.lean_structlog import structlog
from diffuserve.telemetry.log_config import LogConfig, LogFormat
from diffuserve.telemetry.log_fields import FIELDS
from diffuserve.telemetry.repeats import RepeatFilter

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor

_OWN = "diffuserve"
_SET_BY_THEMSELVES = ("uvicorn", "alembic")  # they set levels of their own


def configure_logs(config: LogConfig, stream: TextIO | None = None) -> None:
    """Log to `stream`, or else to stderr, in place of what was configured before.

    Libraries log warnings and errors alone, at any level: below that they would log URLs and messages, which
    hold keys, signatures and prompts.
    """
    level = logging.getLevelNamesMapping()[config.log_level.upper()]
    handler = logging.StreamHandler(stream)
    handler.addFilter(RepeatFilter(handler))
    handler.setFormatter(_formatter(config.log_format, handler.stream))
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[handler], force=True)
    logging.getLogger(_OWN).setLevel(level)
    for name in _SET_BY_THEMSELVES:
        logging.getLogger(name).setLevel(logging.WARNING)


def _formatter(form: LogFormat, stream: TextIO) -> logging.Formatter:
    is_json = form is LogFormat.JSON
    known: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        _add_fields,
        _add_traceback,
        structlog.processors.TimeStamper("iso" if is_json else "%Y-%m-%d %H:%M:%S", utc=is_json),
    ]
    text = structlog.dev.ConsoleRenderer(colors=_has_colors(stream), sort_keys=False)
    renderers: list[Processor] = (
        [structlog.processors.JSONRenderer(_to_json)] if is_json else [_make_visible, text]
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=known,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
    )


def _has_colors(stream: TextIO) -> bool:
    """Return whether the stream is a terminal that shows colors, and nobody asked for none."""
    if not stream.isatty():
        return False
    from rich.console import Console  # noqa: TID251 (which only tells what the stream can)

    console = Console(file=stream)
    return console.color_system is not None and not console.no_color


def _add_fields(_logger: object, _method: str, event: "EventDict") -> "EventDict":
    event.update(getattr(event["_record"], FIELDS, {}))
    return event


def _add_traceback(_logger: object, _method: str, event: "EventDict") -> "EventDict":
    """Add the traceback as text: a server's has been redacted before, and no other form of it is shown."""
    record: logging.LogRecord = event["_record"]
    event.pop("exc_info", None)
    if record.exc_text:
        event["exception"] = record.exc_text
    elif record.exc_info:
        event["exception"] = logging.Formatter().formatException(record.exc_info)
    return event


def _make_visible(_logger: object, _method: str, event: "EventDict") -> "EventDict":
    """Have no value forge a line, or command the terminal that shows it; a traceback keeps its lines."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = visible(value) if name == "exception" else visible_line(value)
    return event


def _to_json(event: "EventDict", **_options: Any) -> str:
    return orjson.dumps(event, default=str).decode()
