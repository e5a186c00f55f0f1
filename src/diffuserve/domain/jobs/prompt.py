"""The record of how a client's prompt was processed into the one that the model reads."""

import hashlib
from dataclasses import asdict, dataclass
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
        return {**asdict(self), "verdict": self.verdict.to_dict()}


def prompt_hash(prompt: str) -> str:
    """Return the SHA-256 of a prompt in hex: equal prompts can be recognized without being stored."""
    return hashlib.sha256(prompt.encode()).hexdigest()
