"""Matching of a policy's rules against folded text. Pure."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from diffuserve.safety.policies.folding import Tokens, fold
from diffuserve.safety.policies.policy import MINORS, Category, Policy, WordList
from diffuserve.safety.policies.spelling import Spelling
from diffuserve.safety.policies.words import Match, Reading, Span, WordMatcher

REACH_CHARACTERS = 100
"""Largest distance between the starts of a combination's first and last match; about sixteen words."""

_Found = tuple[float, Match]  # start in the text, in characters; infinity if it is unknown


class Rules:
    """The compiled rules of a policy. Immutable, and used for every prompt."""

    def __init__(self, policy: Policy) -> None:
        lists = _Lists(policy)
        self._categories = {
            name: _CategoryRules(category, lists) for name, category in policy.categories.items()
        }
        self._spelling = self._categories[MINORS].spelling()

    def prepare(self, text: str) -> "PreparedText":
        """Fold a text, and index it for the rules."""
        folded = fold(text)
        transcribed = self._spelling.transcribed(folded)
        return PreparedText(
            folded.readings,
            folded.runs,
            corrected=self._spelling.corrected(folded),
            transcribed=PreparedText([transcribed]) if transcribed else None,
        )

    def match(self, text: "PreparedText", category: str) -> Match | None:
        """Return the first rule of a category that matches; `None` if none does."""
        return self._categories[category].match(text)


class PreparedText:
    """A folded text, indexed for word lists, with a cache of their matches."""

    def __init__(
        self,
        readings: Sequence[Tokens],
        runs: Tokens = (),
        corrected: Sequence[Tokens] = (),
        transcribed: "PreparedText | None" = None,
    ) -> None:
        """Index the readings; `corrected` and `transcribed` ones are for the strictest rules."""
        self.runs = runs
        self.found: dict[tuple[_CategoryRules, WordMatcher], list[_Found]] = {}
        self.transcribed = transcribed
        self._readings = [Reading(tokens) for tokens in readings]
        self._corrected = [Reading(tokens) for tokens in corrected]
        self._spans: dict[tuple[WordMatcher, bool], list[list[Span]]] = {}

    def spans(self, words: WordMatcher, *, is_strict: bool) -> list[list[Span]]:
        """Return the matches in each reading, cached: categories share lists, and lists share exceptions."""
        key = (words, is_strict)
        if key not in self._spans:
            self._spans[key] = list(self._read(words, is_strict))
        return self._spans[key]

    def _read(self, words: WordMatcher, is_strict: bool) -> Iterator[list[Span]]:
        if is_strict:
            yield from self.spans(words, is_strict=False)
        for reading in self._corrected if is_strict else self._readings:
            yield list(words.spans(reading))


class _Lists:
    """The word lists of a policy, each compiled when the first rule names it."""

    def __init__(self, policy: Policy) -> None:
        self._words = {name: category.words for name, category in policy.categories.items()}
        self._words |= policy.lists
        self._matchers: dict[str, WordMatcher] = {}

    def matcher(self, name: str) -> WordMatcher:
        """Return the matcher of a list, or of all lists whose names begin with what precedes a star."""
        if name not in self._matchers:
            self._matchers[name] = WordMatcher(self._members(name))
        return self._matchers[name]

    def _members(self, name: str) -> Mapping[str, WordList]:
        if not name.endswith("*"):
            return {"": self._words[name]}
        start = name[:-1]
        return {key[len(start) :]: words for key, words in self._words.items() if key.startswith(start)}


class _CategoryRules:
    """The compiled rules of a category. Those of `sexual_minors` find words in disguise as well."""

    def __init__(self, category: Category, lists: _Lists) -> None:
        self._words = lists.matcher(category.name)
        self._exceptions = WordMatcher({"": category.exceptions})
        self._combinations = [
            [(name, lists.matcher(name)) for name in names] for names in category.combinations
        ]
        self._is_strict = category.name == MINORS
        self._reach = math.inf if self._is_strict else REACH_CHARACTERS

    def spelling(self) -> Spelling:
        """Return what finds the English words of this category in their disguises."""
        matchers = [
            words for combination in self._combinations for name, words in combination if name[-1] != "*"
        ]
        words = frozenset().union(self._words.words, *(matcher.words for matcher in matchers))
        return Spelling(filter(str.isascii, words), self._exceptions.words)

    def match(self, text: PreparedText) -> Match | None:
        """Return the first rule that matches; `None` if none does."""
        found = self._match(text)
        if found is None and self._is_strict and text.transcribed:
            return self._match(text.transcribed)
        return found

    def _match(self, text: PreparedText) -> Match | None:
        for combination in self._combinations:
            found = self._match_combination(combination, text)
            if found:
                named = zip(combination, found, strict=True)
                details = (f"{name}: {match.detail}" for (name, _), match in named)
                return Match("combination", "; ".join(details))
        return next((match for _, match in self._found(self._words, text)), None)

    def _match_combination(
        self, combination: Sequence[tuple[str, WordMatcher]], text: PreparedText
    ) -> Sequence[Match]:
        """Return a match of each list, all starting within the reach of the first; `()` if there are none."""
        found: list[list[_Found]] = []
        for _, words in combination:
            matches = self._found(words, text)
            if not matches:
                return ()
            found.append(matches)
        return next(filter(None, (_nearest(lists, self._reach) for lists in _agreeing(found))), ())

    def _found(self, words: WordMatcher, text: PreparedText) -> list[_Found]:
        """Return the matches of words that do not lie within an exception, in the order of the text."""
        cached = text.found.get((self, words))
        if cached is None:
            cached = text.found[self, words] = sorted(self._find(words, text), key=_start_of)
        return cached

    def _find(self, words: WordMatcher, text: PreparedText) -> Iterator[_Found]:
        spans = text.spans(words, is_strict=self._is_strict)
        if any(spans):
            yield from _unless_excepted(spans, text.spans(self._exceptions, is_strict=self._is_strict))
        for match in words.in_runs(text.runs, self._exceptions) if text.runs else ():
            yield math.inf, match


def _unless_excepted(spans: Sequence[list[Span]], exceptions: Sequence[list[Span]]) -> Iterator[_Found]:
    for in_reading, excepted in zip(spans, exceptions, strict=True):
        for start, end, match in in_reading:
            if not any(left <= start and end <= right for left, right, _ in excepted):
                yield start, match


def _agreeing(found: Sequence[list[_Found]]) -> Iterator[Sequence[list[_Found]]]:
    """Yield the matches that may be combined: where several lists have languages, those of one at a time."""
    languages = [frozenset().union(*(match.languages for _, match in matches)) for matches in found]
    of_families = [spoken for spoken in languages if spoken]
    if len(of_families) < 2:
        yield found
        return
    for language in sorted(frozenset.intersection(*of_families)):
        yield [
            [item for item in matches if not item[1].languages or language in item[1].languages]
            for matches in found
        ]


def _nearest(found: Sequence[Sequence[_Found]], reach: float) -> Sequence[Match]:
    """Return one of each list's matches, all starting within the reach of the first; `()` if none do."""
    for start in sorted({start for matches in found for start, _ in matches}):
        near = [_near(matches, start, reach) for matches in found]
        if all(near):
            return [match for match in near if match]
    return ()


def _near(matches: Sequence[_Found], start: float, reach: float) -> Match | None:
    """Return one of the sorted matches that starts within the reach of `start` or at an unknown place."""
    index = bisect_left(matches, start, key=_start_of)
    if index < len(matches) and matches[index][0] <= start + reach:
        return matches[index][1]
    return matches[-1][1] if matches[-1][0] == math.inf else None


def _start_of(found: _Found) -> float:
    return found[0]
