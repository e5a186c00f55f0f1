"""Training prompts, made by chance from a grammar and from the policy's word lists."""

import random
import re
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from diffuserve.safety.policies.policy import MINORS, Policy

GRAMMAR = Path(__file__).with_name("grammar.yaml")
SAFE = "safe"
_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Example:
    prompt: str
    label: str


class Corpus:
    """Sentences for each label; each draw uses the random generator passed to it."""

    def __init__(self, policy: Policy) -> None:
        grammar: dict[str, Any] = yaml.safe_load(GRAMMAR.read_text(encoding="utf-8"))
        self._slots: dict[str, list[str]] = grammar["slots"]
        self._slots |= {name: list(word_list.terms) for name, word_list in policy.lists.items()}
        self._slots |= {"number": [str(number) for number in range(2_100)], "nonsense": _nonsense()}
        self._templates: dict[str, list[str]] = grammar["templates"]
        self._written: dict[str, list[str]] = {SAFE: grammar["hard_safe"], **grammar["written"]}

    def draw(self, label: str, chance: random.Random) -> Example:
        """Return a sentence for the label: a third are hand-written, the rest are filled-in templates."""
        written = self._written.get(label)
        if written and chance.random() < 0.33:
            return Example(self._fill(f"{chance.choice(written)}, {{style}}", chance), label)
        return Example(self._fill(chance.choice(self._templates[label]), chance), label)

    def draw_many(self, num_safe: int, num_unsafe: int, seed: int) -> list[Example]:
        """`num_unsafe` of each label."""
        chance = random.Random(seed)
        counts = {label: num_unsafe for label in self._templates} | {SAFE: num_safe}
        return [self.draw(label, chance) for label, count in counts.items() for _ in range(count)]

    def _fill(self, template: str, chance: random.Random) -> str:
        return _SLOT.sub(lambda match: chance.choice(self._slots[match[1]]), template)


def _nonsense() -> list[str]:
    """Words that nobody has seen say nothing."""
    chance = random.Random(7)
    return ["".join(chance.choices(string.ascii_lowercase, k=chance.randint(2, 10))) for _ in range(3_000)]


def labels(policy: Policy) -> list[str]:
    """The categories that are trained, `sexual_minors` first."""
    return [MINORS, *(name for name in policy.categories if name != MINORS)]
