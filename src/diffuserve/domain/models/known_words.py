"""The words that a small model knows, as its folder declares them, and what is said of the others."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from itertools import chain, islice
from typing import Annotated

from pydantic import Field

from diffuserve.domain.bounds import Printable

_WORD = re.compile(r"[a-z][a-z']*[a-z]")
_SHORTEST = 3
_FILLERS = frozenset(
    ("and", "its", "the", "this", "that", "with", "has", "are", "for", "from", "very", "like")
)
"""Words that ask for nothing by themselves."""
_MOST_TOLD, _MOST_NEAR = 5, 3
_CLOSE, _MOST_LONGER = 0.8, 1
_Name = Annotated[Printable, Field(min_length=1, max_length=100)]
_Names = Annotated[tuple[_Name, ...], Field(max_length=10_000)]
_INFLECTIONS = (
    *(("s", ""), ("es", ""), ("ies", "y"), ("ves", "f"), ("ves", "fe"), ("'s", ""), ("s'", "")),
    *(("ing", ""), ("ing", "e"), ("ed", ""), ("ed", "e"), ("ied", "y")),
)
_DOUBLING = ("ing", "ed")
_SHORTEST_BASE = 2
_LEAST_SHARED, _LONGEST_ENDING = 4, 3  # letters


@dataclass(frozen=True)
class KnownWords:
    """What a model's `vocabulary.json` says.

    `groups` hold things of a kind: for each, the names that mean it, its own first. `words` are the others of
    its prompts. `near` has names for words that mean something known without naming it.
    """

    groups: Annotated[tuple[tuple[Annotated[_Names, Field(min_length=1)], ...], ...], Field(min_length=1)]
    words: _Names = ()
    near: Mapping[_Name, _Names] = field(default_factory=dict)

    def unknown(self, prompt: str) -> list[str]:
        """Return the words of a prompt that the model does not know, each once."""
        found = dict.fromkeys(word for word in _WORD.findall(prompt.lower()) if len(word) >= _SHORTEST)
        return [word for word in found if not self.knows(word)]

    def knows(self, word: str) -> bool:
        """Return whether a word, in lower case, is known, inflects a known one, or asks for nothing."""
        return word in _FILLERS or any(base in self._known for base in _bases(word))

    def instead_of(self, word: str) -> list[str]:
        """Return up to three names: near in meaning, then in spelling; mostly none."""
        names = chain(self.near.get(word, ()), self._spelled_like(word))
        return list(islice(dict.fromkeys(names), _MOST_NEAR))

    def _spelled_like(self, word: str) -> Iterable[str]:
        # To compare a word with all names would take longer than a step.
        alike = (name for name in self._names if name[0] == word[0])
        close = [name for name in alike if abs(len(name) - len(word)) <= _MOST_LONGER]
        yield from get_close_matches(word, close, n=_MOST_NEAR, cutoff=_CLOSE)
        yield from (name for name in self._names if len(name) >= _LEAST_SHARED and word.endswith(name))
        stem = word[: max(_LEAST_SHARED, len(word) - _LONGEST_ENDING)]
        yield from (name for name in self._names if f" {name}".find(f" {stem}") >= 0)
        yield from (name for name in self._names if len(word) >= _LEAST_SHARED and word in name)

    @cached_property
    def _names(self) -> list[str]:
        return [name for group in self.groups for thing in group for name in thing]

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.words) | {word for name in self._names for word in name.split()}


def _bases(word: str) -> Iterator[str]:
    """Yield a word, and the words that it may inflect: its singular, and its verb."""
    yield word
    for ending, replacement in _INFLECTIONS:
        base = word.removesuffix(ending)
        if base != word and len(base) >= _SHORTEST_BASE:
            yield base + replacement
            if ending in _DOUBLING and base[-1] == base[-2]:
                yield base[:-1]  # as in running


@dataclass(frozen=True)
class Vocabulary:
    """The words that a model knows, and those that `others` on the same machine know, by their names."""

    own: KnownWords
    others: Mapping[str, KnownWords] = field(default_factory=dict)

    def warnings(self, prompt: str, model: str) -> tuple[str, ...]:
        """Return one warning of all words of a prompt that the model does not know; none without such words.

        The first five are told, with what is near to each and the other model that knows most of them.
        """
        unknown = self.own.unknown(prompt)
        if not unknown:
            return ()
        told, num_more = unknown[:_MOST_TOLD], len(unknown[_MOST_TOLD:])
        listed = ", ".join(map(self._with_what_is_near, told))
        more = f" and {num_more} more words" if num_more else ""
        return (f"{model} does not know {listed}{more}{self._elsewhere(told)}",)

    def _with_what_is_near(self, word: str) -> str:
        near = self.own.instead_of(word)
        return f"{word!r} (it knows {', '.join(near)})" if near else repr(word)

    def _elsewhere(self, words: Iterable[str]) -> str:
        known = {name: [word for word in words if other.knows(word)] for name, other in self.others.items()}
        best = max(known, key=lambda name: len(known[name]), default=None)
        return f"; {best} knows {', '.join(map(repr, known[best]))}" if best and known[best] else ""
