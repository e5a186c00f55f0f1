"""Choices among words that mean the same, shared by the captions of images and of clips."""

import random
from collections.abc import Sequence


class Synonyms:
    """Choices among words that mean the same; the first of each without a `chance`."""

    def __init__(self, chance: random.Random | None) -> None:
        self._chance = chance

    def pick(self, choices: Sequence[str]) -> str:
        return self._chance.choice(choices) if self._chance else choices[0]

    def is_rare(self) -> bool:
        return self._chance is not None and self._chance.random() < 0.08


def article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"
