"""Verdicts on prompts and images, in the words that every part of the system uses for them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Action(StrEnum):
    """What follows from a finding. A flagged thing passes, and its record says so."""

    ALLOW = "allow"
    FLAG = "flag"
    BLUR = "blur"  # images only
    BLOCK = "block"

    @property
    def severity(self) -> int:
        """Larger is stricter; the strictest finding decides."""
        return _BY_SEVERITY.index(self)


_BY_SEVERITY = (Action.ALLOW, Action.FLAG, Action.BLUR, Action.BLOCK)


@dataclass(frozen=True)
class Finding:
    """One reason. `score` lies in 0…1 and is 1 for a rule; `source` names the rule or the classifier.

    `detail` is for the person who asks why; it may quote the prompt, so it is never stored.
    """

    category: str
    action: Action
    source: str
    score: float = 1.0
    detail: str = ""


@dataclass(frozen=True)
class Verdict:
    """Everything that was found; nothing means that all is well."""

    findings: tuple[Finding, ...] = ()

    @property
    def action(self) -> Action:
        return self.strictest.action if self.strictest else Action.ALLOW

    @property
    def category(self) -> str:
        """Of the finding that decides; empty where there is none."""
        return self.strictest.category if self.strictest else ""

    @property
    def strictest(self) -> Finding | None:
        """The first of the strictest, so that the order of the findings is an order of precedence."""
        return max(self.findings, key=lambda one: one.action.severity, default=None)

    def and_also(self, other: "Verdict") -> "Verdict":
        """What was found in either, each thing once."""
        return Verdict(tuple(dict.fromkeys((*self.findings, *other.findings))))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Verdict":
        """From `to_dict`'s own shape. Raises `ValueError`, `KeyError` or `TypeError` for another."""
        return cls(tuple(Finding(**{**one, "action": Action(one["action"])}) for one in values["findings"]))

    def to_dict(self) -> dict[str, Any]:
        """For records: without the details, which may quote what was checked."""
        return {
            "action": self.action,
            "findings": [
                {name: value for name, value in asdict(one).items() if name != "detail"}
                for one in self.findings
            ],
        }


PASSES = Verdict()


@dataclass(frozen=True)
class FilterInfo:
    """Which filter gave a verdict, so that the verdict can be explained later.

    `thresholds` are scores in 0…1 by category or label.
    """

    name: str
    version: str
    thresholds: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ImagesRecord:
    """Which filter saw the images of a job, and what it said of each."""

    filter: FilterInfo
    verdicts: tuple[Verdict, ...]

    @property
    def strictest(self) -> Verdict:
        return max(self.verdicts, key=lambda one: one.action.severity, default=PASSES)

    def to_dict(self) -> dict[str, Any]:
        return {"filter": self.filter.to_dict(), "verdicts": [one.to_dict() for one in self.verdicts]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ImagesRecord":
        """Raises `ValueError` for anything but `to_dict`'s own shape."""
        try:
            verdicts = tuple(Verdict.from_dict(one) for one in values["verdicts"])
            return cls(FilterInfo(**values["filter"]), verdicts)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a record of images: {error}") from error


class Stage(StrEnum):
    """Where a verdict is given."""

    PROMPT = "prompt"
    IMAGE = "image"


@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    """What was kept out or flagged: never the words, only the hash of a prompt.

    `filter` is its name and version. `job_id` is empty for a prompt that became no job.
    """

    tenant_id: str
    stage: Stage
    category: str
    action: Action
    filter: str
    prompt_hash: str = ""
    job_id: str = ""
    created_at: float = 0.0
