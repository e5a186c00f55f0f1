"""Matching of a policy's rules against folded text. Pure."""

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
"""Largest distance between the starts of a combination's first and last match; about sixteen words."""
_MIN_MASKED = 4  # letters; a shorter word with a masked letter is ambiguous
_MIN_IN_RUN = 4
_REPEATED = re.compile(r"(.)\1+")
_STRETCHED = re.compile(r"(.)\1\1")
_VOWELS = "aeiou"


@dataclass(frozen=True)
class Match:
    """A rule that matched: its `kind` (term, pattern or combination), and a `detail` for people."""

    kind: str
    detail: str


_Span = tuple[int, int, Match]  # start and end in a reading's text, in characters
_Found = tuple[float, Match]  # start in the text, in characters; infinity if it is unknown


class Rules:
    """The compiled rules of a policy. Immutable, and used for every prompt."""

    def __init__(self, policy: Policy) -> None:
        words = {name: category.words for name, category in policy.categories.items()} | dict(policy.lists)
        lists = {name: _WordMatcher(word_list) for name, word_list in words.items()}
        self._categories = {
            name: _CategoryRules(category, lists) for name, category in policy.categories.items()
        }

    def match(self, text: "PreparedText", category: str) -> Match | None:
        """Return the first rule of a category that matches; `None` if none does."""
        return self._categories[category].match(text)


class PreparedText:
    """A folded text, indexed for word lists, with a cache of their matches."""

    def __init__(self, folded: Folded) -> None:
        self.readings = [_Reading(view) for view in folded.readings]
        self.runs = folded.runs
        self._spans: dict[_WordMatcher, list[list[_Span]]] = {}

    def spans(self, words: "_WordMatcher") -> list[list[_Span]]:
        """Return the matches in each reading, cached: categories share lists, and lists share exceptions."""
        if words not in self._spans:
            self._spans[words] = [list(words.spans(reading)) for reading in self.readings]
        return self._spans[words]


class _CategoryRules:
    """The compiled rules of a category."""

    def __init__(self, category: Category, lists: Mapping[str, "_WordMatcher"]) -> None:
        self._words = lists[category.name]
        self._exceptions = _WordMatcher(category.exceptions)
        self._combinations = [[(name, lists[name]) for name in names] for names in category.combinations]
        self._reach = math.inf if category.name == MINORS else REACH_CHARACTERS

    def match(self, text: PreparedText) -> Match | None:
        for combination in self._combinations:
            found = self._match_combination(combination, text)
            if found:
                named = zip(combination, found, strict=True)
                details = (f"{name}: {match.detail}" for (name, _), match in named)
                return Match("combination", "; ".join(details))
        return next((match for _, match in self._words.found(text, self._exceptions)), None)

    def _match_combination(
        self, combination: Sequence[tuple[str, "_WordMatcher"]], text: PreparedText
    ) -> Sequence[Match]:
        """Return a match of each list, all starting within the reach of the first; `()` if there are none."""
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
    """Return one of the sorted matches that starts within the reach of `start` or at an unknown place."""
    index = bisect_left(matches, start, key=_start_of)
    if index < len(matches) and matches[index][0] <= start + reach:
        return matches[index][1]
    return matches[-1][1] if matches[-1][0] == math.inf else None


def _start_of(found: "_Found") -> float:
    return found[0]


class _WordMatcher:
    """A compiled word list: phrases indexed by their first word, and patterns."""

    def __init__(self, words: WordList) -> None:
        self._phrases: dict[str, list[_Phrase]] = {}
        folded = {term: fold(term) for term in words.terms}
        for term in words.terms:
            for phrase in _phrases(term, folded[term]):
                self._phrases.setdefault(phrase.words[0].key, []).append(phrase)
        compact = {"".join(folded[term].plain): term for term in words.terms}
        self._compact = {letters: term for letters, term in compact.items() if len(letters) >= _MIN_IN_RUN}
        self._patterns = PatternList(words.patterns)

    def found(self, text: PreparedText, exceptions: "_WordMatcher") -> Iterator[_Found]:
        """Yield the matches that do not lie within a match of `exceptions`."""
        for number, spans in enumerate(text.spans(self)):
            for start, end, match in spans:
                excepted = text.spans(exceptions)[number]
                if not any(left <= start and end <= right for left, right, _ in excepted):
                    yield start, match
        yield from self._in_runs(text.runs, exceptions)

    def spans(self, reading: "_Reading") -> Iterator[_Span]:
        """Yield the matches in a reading."""
        # Sorted by place in the text: the order of a set differs from process to process.
        for key in sorted(reading.positions.keys() & self._phrases.keys(), key=reading.first_of):
            for position in reading.positions[key]:
                for phrase in self._phrases[key]:
                    if phrase.fits(reading.words[position : position + len(phrase.words)]):
                        start, end = reading.span(position, len(phrase.words))
                        yield start, end, _match("term", phrase.term, reading.text[start:end])
        for pattern, start, end in self._patterns.find_all(reading.text):
            yield start, end, _match("pattern", pattern, reading.text[start:end])

    def _in_runs(self, runs: Tokens, exceptions: "_WordMatcher") -> Iterator[_Found]:
        """Yield the terms in runs of spaced letters, whose place in the text is unknown."""
        for run in runs:
            remainder = run
            for letters in exceptions._compact:
                remainder = remainder.replace(letters, " ")
            for letters, term in self._compact.items():
                if letters in remainder:
                    yield math.inf, _match("term", term, run)


def _match(kind: str, rule: str, found: str) -> Match:
    is_literal = kind == "term" and rule == found
    return Match(kind, f"term {rule!r}" if is_literal else f"{kind} {rule!r} in {found!r}")


@dataclass(frozen=True)
class _Word:
    """A token in the forms that are compared.

    `key` is the singular without repeated letters, equal for all forms of a word. `is_stretched` is true if
    a letter is repeated more than twice, as in `nuuude`.
    """

    token: str
    key: str
    singular: str
    is_stretched: bool

    def fits(self, found: "_Word") -> bool:
        """Return whether `found` is this word or its plural; a plural does not match its singular."""
        if found.is_stretched:
            return self.key == found.key
        return self.token in (found.token, found.singular)


@dataclass(frozen=True)
class _Phrase:
    """A term's words in one of its forms."""

    term: str
    words: tuple[_Word, ...]

    def fits(self, found: Sequence[_Word]) -> bool:
        return len(found) == len(self.words) and all(map(_Word.fits, self.words, found))


class _Reading:
    """A reading of a text, with the positions of its words by their keys."""

    def __init__(self, tokens: Tokens) -> None:
        self.text = " ".join(tokens)
        self.words = [_word(token) for token in tokens]
        self.positions: dict[str, list[int]] = {}
        for position, word in enumerate(self.words):
            self.positions.setdefault(word.key, []).append(position)
        self._starts = [0, *itertools.accumulate(len(token) + 1 for token in tokens)]

    def first_of(self, key: str) -> int:
        """Return the first position of a word, counted in tokens."""
        return self.positions[key][0]

    def span(self, position: int, count: int) -> tuple[int, int]:
        """Return start and end in the text, in characters, of `count` tokens from `position` on."""
        return self._starts[position], self._starts[position + count] - 1


def _phrases(term: str, folded: Folded) -> Iterable[_Phrase]:
    """Yield the forms of a term: as it is, with digits as letters, and with letters masked by stars."""
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
    singular, squeezed = _singular(token), _REPEATED.sub(r"\1", token)
    if squeezed == token:
        return _Word(token, singular, singular, False)
    return _Word(token, _singular(squeezed), singular, bool(_STRETCHED.search(token)))


def _singular(word: str) -> str:
    """Strip what looks like the ending of an English plural."""
    if len(word) > 4 and word.endswith("ies"):
        return f"{word[:-3]}y"
    if len(word) > 4 and word.endswith(("ses", "xes", "zes", "ches", "shes")):
        return word[:-2]
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word
