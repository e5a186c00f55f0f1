"""The interface of prompt expanders, which write a short prompt out into a longer one."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class ExpansionOutcome(StrEnum):
    """The result of a request to expand a prompt."""

    EXPANDED = "expanded"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    ERROR = "error"


@dataclass(frozen=True)
class Expansion:
    """An expanded prompt, or the original one with the reason why it was not expanded.

    `prompt` is the prompt to generate from. `message` is the reason, for people; it never holds a key, a
    prompt or a response.
    """

    prompt: str
    outcome: ExpansionOutcome
    message: str = ""


class PromptExpander(Protocol):
    """Expands prompts. A failure never fails the job: the result then holds the original prompt."""

    identity: str
    """A string of everything beside prompt and seed that decides the text; equal for equal expanders."""

    async def expand(self, prompt: str, seed: int) -> Expansion:
        """Return the expanded prompt, for equal seeds the same if the model allows. Raise nothing."""
        ...

    async def close(self) -> None:
        """Release what the expander holds open."""
        ...
