"""Findings of the checks."""

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """Result of a check; only a failed one keeps diffuserve from working."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True)
class Finding:
    """Result of a check: what was found, and what to do about it."""

    check: str
    outcome: Outcome
    detail: str
    remedy: str = ""


def ok(check: str, detail: str) -> Finding:
    """Return a finding with which all is well."""
    return Finding(check, Outcome.OK, detail)


def warning(check: str, detail: str, remedy: str) -> Finding:
    """Return a finding that some users should act upon."""
    return Finding(check, Outcome.WARNING, detail, remedy)


def failed(check: str, detail: str, remedy: str) -> Finding:
    """Return a finding with which something does not work."""
    return Finding(check, Outcome.FAILED, detail, remedy)
