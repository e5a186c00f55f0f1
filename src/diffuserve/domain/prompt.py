"""How a prompt came to be what the model reads."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diffuserve.domain.safety import PASSES, FilterInfo, Verdict


@dataclass(frozen=True, kw_only=True)
class PromptRecord:
    """Kept beside a job, whose input holds the processed prompt.

    `original` is what the client wrote. `filter` gave the `verdict`; without one nothing looked.
    `expansion` says what became of the wish for a longer prompt, and `reason` why it was not met; both
    are empty where there was none.
    """

    original: str
    verdict: Verdict = PASSES
    filter: FilterInfo | None = None
    expansion: str = ""
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "original": self.original,
            "verdict": self.verdict.to_dict(),
            "filter": None if self.filter is None else self.filter.to_dict(),
            "expansion": self.expansion,
            "reason": self.reason,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "PromptRecord":
        """From `to_dict`'s own shape."""
        return cls(
            original=values["original"],
            verdict=Verdict.from_dict(values["verdict"]),
            filter=FilterInfo(**values["filter"]) if values["filter"] else None,
            expansion=values["expansion"],
            reason=values["reason"],
        )


def prompt_hash(prompt: str) -> str:
    """Tells equal prompts from different ones, and shows none."""
    return hashlib.sha256(prompt.encode()).hexdigest()
