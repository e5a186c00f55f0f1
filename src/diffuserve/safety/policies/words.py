"""Word lists, compiled to be found in the readings of a text: terms, stems, fragments and patterns. Pure."""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import re2

from diffuserve.safety.policies.folding import Folded, Tokens, fold_characters, fold_term
from diffuserve.safety.policies.patterns import PatternList
from diffuserve.safety.policies.policy import WordList

_MIN_MASKED = 4  # letters; a shorter word with a masked letter is ambiguous
_MIN_IN_RUN = 4
_STAR = "*"
_REPEATED = re.compile(r"(.)\1+")
_STRETCHED = re.compile(r"(.)\1\1")
_VOWELS = "aeiou"

Languages = frozenset[str]


@dataclass(frozen=True)
class Match:
    """A rule that matched, and a `detail` for people.

    `kind` is term, stem, fragment, pattern or combination. `languages` are the lists of a family that have
    the rule; empty for a list that belongs to none.
    """

    kind: str
    detail: str
    languages: Languages = frozenset()


Span = tuple[int, int, Match]
"""Start and end of a match in a reading's text, in characters."""


class WordMatcher:
    """Compiled word lists: phrases by their first word, stems by their letters, and patterns.

    `words` are those of all terms, folded.
    """

    def __init__(self, words: Mapping[str, WordList]) -> None:
        """`words` are the lists of a family by language, or a single one by the empty name."""
        terms, stems = _owners(words, "terms"), _owners(words, "stems")
        self._phrases = _by_key(phrase for term in terms for phrase in _phrases(term, fold_term(term)))
        self._masked = _MaskedPhrases(terms)
        joined = {word: "".join(fold_term(word).plain) for word in (*terms, *stems)}
        self._stems = _Stems((joined[stem], stem) for stem in stems)
        compact = [
            (joined[word], kind, word) for kind, of in (("term", terms), ("stem", stems)) for word in of
        ]
        self._compact = [found for found in compact if len(found[0]) >= _MIN_IN_RUN]
        fragments, patterns = _owners(words, "fragments"), _owners(words, "patterns")
        self._fragments = {re2.escape(fold_characters(fragment)): fragment for fragment in fragments}
        self._patterns = PatternList([*self._fragments, *patterns])
        kinds = {"term": terms, "stem": stems, "fragment": fragments, "pattern": patterns}
        self.words = frozenset(token for term in terms for token in fold_term(term).plain)
        self._languages = {(kind, word): spoken for kind, of in kinds.items() for word, spoken in of.items()}

    def spans(self, reading: "Reading") -> Iterator[Span]:
        """Yield the matches in a reading."""
        if self._phrases:
            yield from self._phrase_spans(reading)
        if self._stems:
            yield from self._stem_spans(reading)
        for pattern, start, end in self._patterns.find_all(reading.text):
            found = reading.text[start:end]
            if pattern in self._fragments:
                yield start, end, self._match("fragment", self._fragments[pattern], found)
            else:
                yield start, end, self._match("pattern", pattern, found)

    def in_runs(self, runs: Tokens, exceptions: "WordMatcher") -> Iterator[Match]:
        """Yield the terms and stems in runs of spaced letters, whose place in the text is unknown."""
        for run in runs:
            remainder = run
            for letters, _, _ in exceptions._compact:
                remainder = remainder.replace(letters, " ")
            for letters, kind, word in self._compact:
                if letters in remainder:
                    yield self._match(kind, word, run)

    def _phrase_spans(self, reading: "Reading") -> Iterator[Span]:
        # Sorted by place in the text: the order of a set differs from process to process.
        found = {key: self._phrases[key] for key in reading.positions.keys() & self._phrases.keys()}
        found |= self._masked.find(reading)
        for key in sorted(found, key=reading.first_of):
            for position in reading.positions[key]:
                for phrase in found[key]:
                    if phrase.fits(reading.words[position : position + len(phrase.words)]):
                        start, end = reading.span(position, len(phrase.words))
                        yield start, end, self._match("term", phrase.term, reading.text[start:end])

    def _stem_spans(self, reading: "Reading") -> Iterator[Span]:
        for position in self._stems.places(reading.words):
            word = reading.words[position]
            for stem in self._stems.begin(word):
                start, end = reading.span(position, 1)
                yield start, end, self._match("stem", stem, word.token)

    def _match(self, kind: str, rule: str, found: str) -> Match:
        is_literal = kind != "pattern" and rule == found
        detail = f"{kind} {rule!r}" if is_literal else f"{kind} {rule!r} in {found!r}"
        return Match(kind, detail, self._languages[kind, rule])


def _owners(words: Mapping[str, WordList], kind: str) -> dict[str, Languages]:
    """Return the languages of each word of a kind, in the order of the lists."""
    owners: dict[str, set[str]] = defaultdict(set)
    for language, word_list in words.items():
        for word in getattr(word_list, kind):
            owners[word] |= {language} - {""}
    return {word: frozenset(languages) for word, languages in owners.items()}


class _MaskedPhrases:
    """Phrases with letters masked by stars. Few texts have stars, so they are formed as they are needed."""

    def __init__(self, terms: Iterable[str]) -> None:
        self._terms: dict[str, list[str]] = defaultdict(list)
        for term in terms:
            folded = fold_term(term)
            for first in {tokens[0][0] for tokens in (folded.plain, folded.spelled) if tokens}:
                self._terms[first].append(term)
        self._phrases: dict[str, dict[str, list[_Phrase]]] = {}

    def find(self, reading: "Reading") -> dict[str, list["_Phrase"]]:
        """Return all phrases by the key of their first word, for the keys of a reading that have stars."""
        if _STAR not in reading.text:
            return {}
        keys = (key for key in reading.positions if _STAR in key)
        return {key: phrases for key in keys if (phrases := self._by_key(key[0]).get(key))}

    def _by_key(self, first: str) -> Mapping[str, list["_Phrase"]]:
        """Return the phrases whose first word begins so: its first letter is never masked."""
        if first not in self._phrases:
            phrases = (
                phrase
                for term in self._terms.get(first, ())
                for phrase in (*_phrases(term, fold_term(term)), *_masked_phrases(term, fold_term(term)))
            )
            self._phrases[first] = _by_key(phrases)
        return self._phrases[first]


class _Stems:
    """Beginnings of words, by their letters."""

    def __init__(self, stems: Iterable[tuple[str, str]]) -> None:
        """`stems` are pairs of folded letters and the stem that they stand for."""
        self._by_start: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for letters, stem in stems:
            self._by_start[_REPEATED.sub(r"\1", letters)].append((letters, stem))
        self._lengths = sorted(set(map(len, self._by_start)))
        self._shortest = min(self._lengths, default=0)
        self._first_letters = {letters[: self._shortest] for letters in self._by_start}

    def __bool__(self) -> bool:
        return bool(self._lengths)

    def places(self, words: Sequence["_Word"]) -> list[int]:
        """Return the places of the words that may begin with a stem: most do not, by their first letters."""
        shortest, first_letters = self._shortest, self._first_letters
        return [i for i, word in enumerate(words) if word.squeezed[:shortest] in first_letters]

    def begin(self, word: "_Word") -> Iterator[str]:
        """Yield the stems with which a word begins, the shortest first."""
        for length in self._lengths:
            if length > len(word.squeezed):
                return
            for letters, stem in self._by_start.get(word.squeezed[:length], ()):
                if word.is_stretched or word.token.startswith(letters):
                    yield stem


@dataclass(frozen=True)
class _Word:
    """A token in the forms that are compared.

    `squeezed` has no letter twice in a row, and `key` is its singular, equal for all forms of a word.
    `is_stretched` is true if a letter is repeated more than twice, as in `nuuude`.
    """

    token: str
    squeezed: str
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


class Reading:
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


def _by_key(phrases: Iterable[_Phrase]) -> dict[str, list[_Phrase]]:
    """Return the phrases by the key of their first word."""
    by_key: dict[str, list[_Phrase]] = defaultdict(list)
    for phrase in phrases:
        by_key[phrase.words[0].key].append(phrase)
    return dict(by_key)


def _phrases(term: str, folded: Folded) -> Iterable[_Phrase]:
    """Yield the forms of a term: as it is, and with digits as letters."""
    tokens = folded.plain
    yield _Phrase(term, tuple(map(_word, tokens)))
    if folded.spelled != tokens and sum(map(str.isalpha, term)) >= _MIN_MASKED:
        yield _Phrase(term, tuple(map(_word, folded.spelled)))


def _masked_phrases(term: str, folded: Folded) -> Iterable[_Phrase]:
    """Yield the forms of a term with letters masked by stars."""
    tokens = folded.plain
    if len(tokens) == 1 and len(tokens[0]) >= _MIN_MASKED:
        for masked in _masked(tokens[0]):
            yield _Phrase(term, (_word(masked),))


def _masked(word: str) -> set[str]:
    inner = range(1, len(word) - 1)
    forms = {word[:i] + _STAR + word[i + 1 :] for i in inner}
    vowels = "".join(_STAR if i in inner and letter in _VOWELS else letter for i, letter in enumerate(word))
    return (forms | {vowels}) - {word}


@lru_cache(65_536)
def _word(token: str) -> _Word:
    singular, squeezed = _singular(token), _REPEATED.sub(r"\1", token)
    if squeezed == token:
        return _Word(token, token, singular, singular, False)
    return _Word(token, squeezed, _singular(squeezed), singular, bool(_STRETCHED.search(token)))


def _singular(word: str) -> str:
    """Strip what looks like the ending of an English plural."""
    if len(word) > 4 and word.endswith("ies"):
        return f"{word[:-3]}y"
    if len(word) > 4 and word.endswith(("ses", "xes", "zes", "ches", "shes")):
        return word[:-2]
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word
