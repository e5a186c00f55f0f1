"""Verdicts on prompts and images, and the records of them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from diffuserve.domain.bounds import Amount


class Action(StrEnum):
    """The consequence of a finding, in order of severity. `FLAG` only records the finding."""

    ALLOW = "allow"
    FLAG = "flag"
    BLUR = "blur"  # images only
    BLOCK = "block"

    @property
    def severity(self) -> int:
        """Rank from 0; the finding with the highest decides."""
        return list(Action).index(self)


@dataclass(frozen=True)
class Finding:
    """A reason for a verdict. `score` lies in 0…1 and is 1 for a rule; `source` names rule or classifier.

    `detail` explains the finding to people; it may quote the prompt, so it is never stored.
    """

    category: str
    action: Action
    source: str
    score: float = 1.0
    detail: str = ""


@dataclass(frozen=True)
class Verdict:
    """The findings about a prompt or an image, which passes if there are none."""

    findings: tuple[Finding, ...] = ()

    @property
    def action(self) -> Action:
        """The strictest action of all findings; `ALLOW` without findings."""
        return self.strictest.action if self.strictest else Action.ALLOW

    @property
    def category(self) -> str:
        """Category of the strictest finding; empty without findings."""
        return self.strictest.category if self.strictest else ""

    @property
    def strictest(self) -> Finding | None:
        """The first of the strictest findings, so that the order of findings is an order of precedence."""
        return max(self.findings, key=lambda finding: finding.action.severity, default=None)

    def merge(self, other: "Verdict") -> "Verdict":
        """Return a verdict with the findings of both, without duplicates."""
        return Verdict(tuple(dict.fromkeys((*self.findings, *other.findings))))

    def to_dict(self) -> dict[str, Any]:
        """Return a record, without the details, which may quote the prompt."""
        return {
            "action": self.action,
            "findings": [
                {name: value for name, value in asdict(finding).items() if name != "detail"}
                for finding in self.findings
            ],
        }


PASSES = Verdict()


@dataclass(frozen=True)
class FilterInfo:
    """The filter that gave a verdict, recorded so that the verdict can be explained later.

    `thresholds` are scores in 0…1 by category or label.
    """

    name: str
    version: str
    thresholds: Mapping[str, Amount] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True)
class ImagesRecord:
    """The filter that checked a job's images or sounds, and its verdict on each."""

    filter: FilterInfo
    verdicts: tuple[Verdict, ...]

    @property
    def strictest(self) -> Verdict:
        """The first verdict with the strictest action; `PASSES` without images."""
        return max(self.verdicts, key=lambda verdict: verdict.action.severity, default=PASSES)

    def to_dict(self) -> dict[str, Any]:
        """Return a record."""
        verdicts = [verdict.to_dict() for verdict in self.verdicts]
        return {"filter": asdict(self.filter), "verdicts": verdicts}


class SafetyStage(StrEnum):
    """The stage of a job at which a verdict is given: its prompt, the images it brings, and what it makes."""

    PROMPT = "prompt"
    INPUT = "input"
    IMAGE = "image"
    SOUND = "sound"


@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    """A prompt or image that was flagged, blurred or blocked. The prompt itself is never stored.

    `filter` is the filter's name and version. `prompt_hash` is a sha256 in hex. `job_id` is empty for a
    prompt that was blocked before its job was stored.
    """

    tenant_id: str
    stage: SafetyStage
    category: str
    action: Action
    filter: str
    prompt_hash: str = ""
    job_id: str = ""
    created_at: float = 0.0
