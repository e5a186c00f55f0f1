"""What writes short prompts out into long ones."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class ExpansionOutcome(StrEnum):
    """What became of the wish for a longer prompt."""

    EXPANDED = "expanded"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    ERROR = "error"


@dataclass(frozen=True)
class Expansion:
    """`prompt` is the one to draw: the expanded one, or the original where that did not come about.

    `message` says why it did not, for people; it never holds a key, a prompt or what was answered.
    """

    prompt: str
    outcome: ExpansionOutcome
    message: str = ""


class PromptExpander(Protocol):
    """Never a reason for a job to fail: whatever goes wrong, the original prompt comes back."""

    identity: str
    """Whatever decides the text beside the prompt and the seed; equal for equal expanders."""

    async def expand(self, prompt: str, seed: int) -> Expansion:
        """The same seed is meant to give the same text. Raises nothing."""
        ...

    async def close(self) -> None: ...
