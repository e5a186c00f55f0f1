"""The record of how a client's prompt was processed into the one that the model reads."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diffuserve.domain.safety import PASSES, FilterInfo, Verdict


@dataclass(frozen=True, kw_only=True)
class PromptRecord:
    """Record of a prompt's processing, stored beside the job, whose input holds the processed prompt.

    `original` is the client's text. `filter` gave the `verdict`; it is `None` if prompts are not checked.
    `expansion` is the outcome of the client's request to expand the prompt, and `reason` says why it was
    not expanded; both are empty without such a request.
    """

    original: str
    verdict: Verdict = PASSES
    filter: FilterInfo | None = None
    expansion: str = ""
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON values, without the findings' details, which may quote the prompt."""
        return {
            "original": self.original,
            "verdict": self.verdict.to_dict(),
            "filter": None if self.filter is None else self.filter.to_dict(),
            "expansion": self.expansion,
            "reason": self.reason,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "PromptRecord":
        """Build a record from the output of `to_dict`."""
        return cls(
            original=values["original"],
            verdict=Verdict.from_dict(values["verdict"]),
            filter=FilterInfo.from_dict(values["filter"]) if values["filter"] else None,
            expansion=values["expansion"],
            reason=values["reason"],
        )


def prompt_hash(prompt: str) -> str:
    """Return the SHA-256 of a prompt in hex: equal prompts can be recognized without being stored."""
    return hashlib.sha256(prompt.encode()).hexdigest()
