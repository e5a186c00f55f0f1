"""Configuration of the log, the same for every process of a server or worker."""

from dataclasses import dataclass
from enum import StrEnum

from diffuserve.options import option


class _Word(StrEnum):
    @classmethod
    def _missing_(cls, value: object) -> "_Word | None":
        return next((member for member in cls if member == str(value).lower()), None)


class LogLevel(_Word):
    """Severity of a line, as `--log-level` names it."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(_Word):
    """Form of a line."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """Lines that a process logs, and their form."""

    log_level: LogLevel = option(
        LogLevel.INFO, "Least severe lines that are logged: debug, info, warning or error."
    )
    log_format: LogFormat = option(LogFormat.TEXT, "Form of the log's lines: text, or one JSON object each.")
