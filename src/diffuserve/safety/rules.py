"""Finds a policy's words in folded text. Pure: the same policy and text give the same matches."""

import itertools
import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from diffuserve.safety.folding import Folded, Tokens, fold
from diffuserve.safety.patterns import PatternList
from diffuserve.safety.policy import MINORS, Category, Policy, WordList

REACH_CHARACTERS = 100
"""From the first word of a combination to where the last begins; some sixteen words."""
_MIN_MASKED = 4  # letters; with fewer, a masked word may be any
_MIN_IN_RUN = 4
_REPEATED = re.compile(r"(.)\1+")
_STRETCHED = re.compile(r"(.)\1\1")
_VOWELS = "aeiou"


@dataclass(frozen=True)
class Match:
    """A rule that holds: its `kind` (term, pattern or combination) and what it says, for people."""

    kind: str
    detail: str


_Span = tuple[int, int, Match]  # from and to in a reading's text, in characters
_Found = tuple[float, Match]  # where in the text a match begins, in characters; infinity: not known


class Rules:
    """A policy made ready to be matched; made once, used for every prompt, never changed."""

    def __init__(self, policy: Policy) -> None:
        words = {name: category.words for name, category in policy.categories.items()} | dict(policy.lists)
        lists = {name: _Words(one) for name, one in words.items()}
        self._categories = {
            name: _CategoryRules(category, lists) for name, category in policy.categories.items()
        }

    def match(self, text: "ReadyText", category: str) -> Match | None:
        """The first rule of a category that holds."""
        return self._categories[category].match(text)


class ReadyText:
    """A folded text with what every word list looks up in it, and what they have found so far."""

    def __init__(self, folded: Folded) -> None:
        self.readings = [_Reading(view) for view in folded.views]
        self.runs = folded.runs
        self._spans: dict[_Words, list[list[_Span]]] = {}

    def spans(self, words: "_Words") -> list[list[_Span]]:
        """Of each reading; looked for once, since categories share lists and lists share exceptions."""
        if words not in self._spans:
            self._spans[words] = [list(words.spans(reading)) for reading in self.readings]
        return self._spans[words]


class _CategoryRules:
    def __init__(self, category: Category, lists: Mapping[str, "_Words"]) -> None:
        self._words = lists[category.name]
        self._exceptions = _Words(category.exceptions)
        self._combinations = [[(name, lists[name]) for name in names] for names in category.combinations]
        self._reach = math.inf if category.name == MINORS else REACH_CHARACTERS

    def match(self, text: ReadyText) -> Match | None:
        for combination in self._combinations:
            found = self._together(combination, text)
            if found:
                details = (f"{name}: {one.detail}" for (name, _), one in zip(combination, found, strict=True))
                return Match("combination", "; ".join(details))
        return next((match for _, match in self._words.found(text, self._exceptions)), None)

    def _together(self, combination: Sequence[tuple[str, "_Words"]], text: ReadyText) -> Sequence[Match]:
        """A match of each list, none further from the first of them than the reach; empty without."""
        found: list[list[_Found]] = []
        for _, words in combination:
            matches = sorted(words.found(text, self._exceptions), key=_start_of)
            if not matches:
                return ()
            found.append(matches)
        for start in sorted({start for matches in found for start, _ in matches}):
            near = [_near(matches, start, self._reach) for matches in found]
            if all(near):
                return [match for match in near if match]
        return ()


def _near(matches: Sequence["_Found"], start: float, reach: float) -> Match | None:
    """One of these, sorted, that begins within the reach of `start` or stands nobody knows where."""
    index = bisect_left(matches, start, key=_start_of)
    if index < len(matches) and matches[index][0] <= start + reach:
        return matches[index][1]
    return matches[-1][1] if matches[-1][0] == math.inf else None


def _start_of(found: "_Found") -> float:
    return found[0]


class _Words:
    """A word list made ready: phrases by their first word."""

    def __init__(self, words: WordList) -> None:
        self._phrases: dict[str, list[_Phrase]] = {}
        for term in words.terms:
            for phrase in _phrases(term):
                self._phrases.setdefault(phrase.words[0].key, []).append(phrase)
        compact = {"".join(fold(term).plain): term for term in words.terms}
        self._compact = {letters: term for letters, term in compact.items() if len(letters) >= _MIN_IN_RUN}
        self._patterns = PatternList(words.patterns)

    def found(self, text: ReadyText, exceptions: "_Words") -> Iterator[_Found]:
        """The matches that no exception takes back."""
        for number, spans in enumerate(text.spans(self)):
            for start, end, match in spans:
                excepted = text.spans(exceptions)[number]
                if not any(first <= start and end <= last for first, last, _ in excepted):
                    yield start, match
        yield from self._in_runs(text.runs, exceptions)

    def spans(self, reading: "_Reading") -> Iterator[_Span]:
        """Where in the reading's text something matches, in characters."""
        # In the order of the text: that of a set differs from process to process.
        for key in sorted(reading.positions.keys() & self._phrases.keys(), key=reading.first_of):
            for position in reading.positions[key]:
                for phrase in self._phrases[key]:
                    if phrase.fits(reading.words[position : position + len(phrase.words)]):
                        start, end = reading.span(position, len(phrase.words))
                        yield start, end, _match("term", phrase.term, reading.text[start:end])
        for pattern, start, end in self._patterns.find_all(reading.text):
            yield start, end, _match("pattern", pattern, reading.text[start:end])

    def _in_runs(self, runs: Tokens, exceptions: "_Words") -> Iterator[_Found]:
        """Where a run stands in the text is not known: its words are near to any."""
        for run in runs:
            left = run
            for letters in exceptions._compact:
                left = left.replace(letters, " ")
            for letters, term in self._compact.items():
                if letters in left:
                    yield math.inf, _match("term", term, run)


def _match(kind: str, rule: str, found: str) -> Match:
    return Match(
        kind, f"{kind} {rule!r} in {found!r}" if kind == "pattern" or rule != found else f"term {rule!r}"
    )


@dataclass(frozen=True)
class _Word:
    """`key` is the same for all forms of a word; the rest tells apart what is the same only when squeezed."""

    token: str
    key: str
    singular: str
    is_stretched: bool

    def fits(self, found: "_Word") -> bool:
        """Itself and its plural; one that is written in the plural does not hold for the singular."""
        if found.is_stretched:
            return self.key == found.key
        return self.token in (found.token, found.singular)


@dataclass(frozen=True)
class _Phrase:
    term: str
    words: tuple[_Word, ...]

    def fits(self, found: Sequence[_Word]) -> bool:
        return len(found) == len(self.words) and all(map(_Word.fits, self.words, found))


class _Reading:
    def __init__(self, tokens: Tokens) -> None:
        self.text = " ".join(tokens)
        self.words = [_word(token) for token in tokens]
        self.positions: dict[str, list[int]] = {}
        for position, word in enumerate(self.words):
            self.positions.setdefault(word.key, []).append(position)
        self._starts = [0, *itertools.accumulate(len(token) + 1 for token in tokens)]

    def first_of(self, key: str) -> int:
        return self.positions[key][0]

    def span(self, position: int, count: int) -> tuple[int, int]:
        """Of these tokens in the text, in characters."""
        return self._starts[position], self._starts[position + count] - 1


def _phrases(term: str) -> Iterable[_Phrase]:
    """A term as it is and with its digits as letters, and a single word with letters masked by stars."""
    folded = fold(term)
    tokens = folded.plain
    yield _Phrase(term, tuple(map(_word, tokens)))
    if folded.spelled != tokens and sum(map(str.isalpha, term)) >= _MIN_MASKED:
        yield _Phrase(term, tuple(map(_word, folded.spelled)))
    if len(tokens) == 1 and len(tokens[0]) >= _MIN_MASKED:
        for masked in _masked(tokens[0]):
            yield _Phrase(term, (_word(masked),))


def _masked(word: str) -> set[str]:
    inner = range(1, len(word) - 1)
    forms = {word[:i] + "*" + word[i + 1 :] for i in inner}
    vowels = "".join("*" if i in inner and letter in _VOWELS else letter for i, letter in enumerate(word))
    return (forms | {vowels}) - {word}


@lru_cache(65_536)
def _word(token: str) -> _Word:
    squeezed = _REPEATED.sub(r"\1", token)
    return _Word(token, _singular(squeezed), _singular(token), bool(_STRETCHED.search(token)))


def _singular(word: str) -> str:
    """Without what looks like a plural's ending."""
    if len(word) > 4 and word.endswith("ies"):
        return f"{word[:-3]}y"
    if len(word) > 4 and word.endswith(("ses", "xes", "zes", "ches", "shes")):
        return word[:-2]
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word
