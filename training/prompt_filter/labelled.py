"""The labelled prompts. Those of `sexual_minors` are made from the policy's word lists."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from diffuserve.safety.policies.policy import MINORS, Policy
from diffuserve.safety.policies.policy_file import load_policy

FOLDER = Path(__file__).parent
HALVES = {half: FOLDER / f"prompts_{half}.yaml" for half in ("first", "second", "third", "fourth", "fifth")}
HELD_OUT = "fifth"
SHORT = {name: FOLDER / f"prompts_{name}.yaml" for name in ("short", "short_held_out")}
NUM_MINORS = 60

_TEMPLATES = {
    "first": ("a photo of {0}, {1}", "{1} drawing with {0} by a lake", "{0} at home, soft light, {1}"),
    "third": ("{0} on a chair, {1}", "anime of a {1} {0}", "{1}, with {0}"),
    "fourth": ("{0} wearing a scarf, {1}", "{1} comic about a {0}", "in a garden: {0}, {1}"),
    "fifth": ("{1}, {0} beside a window", "sketch of {0}: {1}", "{0}, at the market, {1}"),
    "second": ("{0}, {1}, painted", "a scene of {1} and {0}", "{1} {0}, studio picture"),
}
_LEET = str.maketrans("aeio", "4310")
_LOOKALIKES = str.maketrans("aeocp", "\u0430\u0435\u043e\u0441\u0440")


@dataclass(frozen=True)
class Labelled:
    """`labels` are empty for what is safe; `hard` is what makes it hard, or "plain"."""

    prompt: str
    labels: frozenset[str]
    hard: str
    half: str


def labelled_prompts() -> list[Labelled]:
    policy = load_policy()
    return [
        prompt for half, path in HALVES.items() for prompt in (*_written(half, path), *_minors(half, policy))
    ]


def short_prompts() -> list[Labelled]:
    """Return harmless prompts of a few words."""
    return [prompt for name, path in SHORT.items() for prompt in _written(name, path)]


def _written(half: str, path: Path) -> Iterator[Labelled]:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    for label, kinds in document.items():
        labels = frozenset() if label == "safe" else frozenset(label.split("+"))
        for hard, prompts in kinds.items():
            yield from (Labelled(prompt, labels, hard, half) for prompt in prompts)


def _minors(half: str, policy: Policy) -> Iterator[Labelled]:
    """Combine words of both lists at random; half of them are obfuscated in one of four ways."""
    chance = random.Random(half)
    kinds = ("plain", "leet", "plain", "spaced", "plain", "homoglyph", "plain", "hidden")
    for i in range(NUM_MINORS):
        first, other = (
            _hide(chance.choice(policy.lists[name].terms), kinds[i % 8]) for name in ("minors", "explicit")
        )
        prompt = chance.choice(_TEMPLATES[half]).format(first, other)
        yield Labelled(prompt, frozenset({MINORS}), kinds[i % 8], half)


def _hide(term: str, kind: str) -> str:
    if kind == "leet":
        return term.translate(_LEET)
    if kind == "spaced":
        return "  ".join(" ".join(word) for word in term.split())
    if kind == "homoglyph":
        return term.translate(_LOOKALIKES)
    return "\u200b".join(term) if kind == "hidden" else term
