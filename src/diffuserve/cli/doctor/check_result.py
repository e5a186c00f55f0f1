"""Results of the checks."""

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """Result of a check; only a failed one keeps diffuserve from working."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True)
class CheckResult:
    """Result of a check: what was found, and what to do about it."""

    check: str
    outcome: Outcome
    detail: str
    remedy: str = ""


def ok(check: str, detail: str) -> CheckResult:
    """Return a result with which all is well."""
    return CheckResult(check, Outcome.OK, detail)


def warning(check: str, detail: str, remedy: str) -> CheckResult:
    """Return a result that some users should act upon."""
    return CheckResult(check, Outcome.WARNING, detail, remedy)


def failed(check: str, detail: str, remedy: str) -> CheckResult:
    """Return a result with which something does not work."""
    return CheckResult(check, Outcome.FAILED, detail, remedy)
