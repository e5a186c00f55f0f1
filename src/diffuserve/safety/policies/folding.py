"""Folding: a normal form of text for the safety check alone. The model never reads it.

A word can be hidden from a word list and still be legible: `n u d e`, `nud3`, letters of other scripts,
characters of no width. Folding undoes that. Where a spelling is ambiguous there are several readings, and a
rule matches if it matches any of them. All functions take time linear in the text's length.
"""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from confusable_homoglyphs.confusables import confusables_data

Tokens = tuple[str, ...]

_MAX_CACHED = 16_384  # characters; a prompt has a few dozen different ones
_MAX_TERMS = 16_384  # a policy has some thousand
_MAX_ROUNDS = 8  # no character needs more than three to reach its final form
_MAX_EXPANSION = 4  # characters; some ligatures stand for up to eighteen, which no hidden word needs
_INVISIBLE = "\u115f\u1160\u3164\uffa0"  # letters by their category, but rendered as nothing
_BLANK = "\u2800"  # a symbol by its category, but rendered as a space
_DROPPED = {"Cc", "Cf", "Cs", "Mn", "Me"}
_STRETCH = "\u0640"  # lengthens an Arabic word, and means nothing


def _vowel_signs() -> str:
    """Return the signs that are written with a letter in the scripts of South and Southeast Asia.

    They are as much of a word as its letters are. Signs for tone and the like are left out: like accents,
    people leave them out as well.
    """
    scripts = (*range(0x0900, 0x1100), *range(0x1780, 0x1800))
    return "".join(
        chr(code)
        for code in scripts
        if unicodedata.category(chr(code)) in {"Mn", "Mc"} and unicodedata.combining(chr(code)) in {0, 9}
    )


_SIGNS = _vowel_signs()
_NAMED_LETTER = re.compile(
    r"(?:LATIN (?:SMALL |CAPITAL )?LETTER|LATIN LETTER SMALL CAPITAL|REGIONAL INDICATOR SYMBOL LETTER"
    r"|(?:CROSSED )?(?:NEGATIVE )?(?:CIRCLED|SQUARED) LATIN CAPITAL LETTER) ([A-Z])(?: WITH .*)?"
)
_SMALL_CYRILLIC = dict(zip("вкмнт", "bkmht", strict=True))  # the confusables list has only their capitals
# Forms of a letter that differ from language to language, and are typed for one another.
_ARABIC_FORMS = dict(zip("یىېےکڪہھەةۃں", "ييييككهههههن", strict=True))
_LOOKALIKES = Path(__file__).with_name("lookalikes.tsv")
_APOSTROPHES = str.maketrans(dict.fromkeys("'`\u2018\u2019\u02bc", ""))

_PLAIN = re.compile(r"[a-z]{2,}(?: [a-z]{2,})*")
# Possessive repeats: a long word that does not match is not scanned again from each of its letters.
_LETTER = rf"[\w{_SIGNS}]"  # folded text has no underscore
_TOKEN = re.compile(rf"{_LETTER}++(?:\*++{_LETTER}++)*+")  # a star within a word stands for a letter
_PIECE = re.compile(rf"[\w{_SIGNS}@$!|€£]+")
_MEASURE = re.compile(  # 4k, 85mm, 1st, 1360x768, 80s
    r"(?:\d+x)*\d+(?:x|k|p|d|s|m|mm|cm|km|in|ft|px|mp|fps|hz|gb|mb|g|kg|w|v|h|mph|am|pm|st|nd|rd|th|yo|bit)?"
)
_LEET = str.maketrans("0134578@$!|€£9", "oieastbasiielg")
_LEET_WITH_L = str.maketrans("0134578@$!|€£9", "oleastbaslielg")
_SPACED_LETTERS = re.compile(rf"(?<!{_LETTER})[\w@$!](?:[^\w{_SIGNS}@$!]{{1,3}}[\w@$!]){{2,}}(?!{_LETTER})")
_GLUED = re.compile(rf"(?<!{_LETTER}){_LETTER}++(?:[-.~*^+|=]{{1,2}}{_LETTER}++)++")


@dataclass(frozen=True)
class Folded:
    """The readings of a text, as tokens of lower-case letters and digits.

    `plain` keeps digits and word boundaries. `spelled` replaces digits and symbols within words by the
    letters they resemble, and joins spaced letters. `others` are less likely readings. `runs` are the spaced
    letters, each run without its spaces; the word boundaries in a run are unknown. `disguised` are the tokens
    of a text with characters that may stand for several Latin letters (`lookalikes`), which are kept.
    """

    plain: Tokens
    spelled: Tokens
    others: tuple[Tokens, ...] = ()
    runs: Tokens = ()
    disguised: Tokens = ()

    @property
    def readings(self) -> tuple[Tokens, ...]:
        """Different readings of the text, the plain reading first."""
        return tuple(dict.fromkeys((self.plain, self.spelled, *self.others)))

    @property
    def text(self) -> str:
        """The plain reading with single spaces between its tokens."""
        return " ".join(self.plain)


def fold(text: str) -> Folded:
    """Return the readings of any text. Raise nothing."""
    if _PLAIN.fullmatch(text):  # there is nothing to fold, as in most terms of a policy
        tokens = tuple(text.split(" "))
        return Folded(tokens, tokens, (tokens, tokens))
    return _fold(text)


@lru_cache(_MAX_TERMS)
def fold_term(term: str) -> Folded:
    """Return `fold` of a word of a policy, which is checked, and then compiled for several lists."""
    return fold(term)


def _fold(text: str) -> Folded:
    characters = fold_characters(text)
    spelled, runs = _spell(characters, _LEET)
    with_l, _ = _spell(characters, _LEET_WITH_L)
    glued = _GLUED.sub(lambda match: "".join(_letters(match[0])), spelled)
    others = (_tokens(with_l), _tokens(glued))
    return Folded(_tokens(characters), _tokens(spelled), others, runs, _disguised(text))


def _disguised(text: str) -> Tokens:
    """Return the tokens of a text with foreign letters as they are; `()` if nothing may be in disguise."""
    if text.isascii() or lookalikes().keys().isdisjoint(text):
        return ()
    return tuple(_disguised_token().findall("".join(map(_keep_foreign, text))))


@lru_cache(_MAX_CACHED)
def _keep_foreign(character: str) -> str:
    """Return a character folded, but without a mark if it is a letter of another script than Latin."""
    base = unicodedata.normalize("NFKD", character)[:1]
    is_foreign = base in lookalikes() or (
        base.isalpha() and not unicodedata.name(base, "").startswith("LATIN")
    )
    return base if is_foreign and not base.isascii() else _fold_character(character)


@cache
def _disguised_token() -> re.Pattern[str]:
    return re.compile(rf"[\w{_SIGNS}{''.join(lookalikes())}]++")


@cache
def lookalikes() -> Mapping[str, tuple[str, ...]]:
    """Return the letters that characters may stand for beside, or instead of, those that folding gives."""
    lines = _LOOKALIKES.read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    return {row[0]: (*row[1:], _fold_character(row[0])) for row in rows}


def fold_characters(text: str) -> str:
    """Return the text in lower case, without accents and invisible characters, with Latin look-alikes.

    A character of another script becomes the Latin letters that it resembles, if any.
    """
    return "".join(map(_fold_character, text)).translate(_APOSTROPHES)


@lru_cache(_MAX_CACHED)
def _fold_character(character: str) -> str:
    # `unicodedata.normalize` on the whole text would take quadratic time to sort a long row of accents.
    text = character
    for _ in range(_MAX_ROUNDS):
        before, text = text, "".join(map(_fold_once, text))
        if text == before:
            break
    return text[:_MAX_EXPANSION]


def _fold_once(character: str) -> str:
    if character.isspace() or character == _BLANK:
        return " "
    if character in _SIGNS:
        return character
    if character in _INVISIBLE or character == _STRETCH or unicodedata.category(character) in _DROPPED:
        return ""
    if character.isascii():
        return "-" if character == "_" else character.lower()
    decomposed = unicodedata.normalize("NFKD", character)
    if decomposed != character:
        return decomposed
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    return _latin(character) or character.casefold()


def _latin(character: str) -> str:
    """Return the Latin letters that a character of another script or shape resembles, or `''`."""
    if named := _NAMED_LETTER.fullmatch(unicodedata.name(character, "")):
        return named[1].lower()
    if character in _SMALL_CYRILLIC:
        return _SMALL_CYRILLIC[character]
    if character in _ARABIC_FORMS:
        return _ARABIC_FORMS[character]
    if not character.isalpha():
        return ""
    glyphs = (str(entry["c"]) for entry in confusables_data.get(character, ()))
    return next((glyph.lower() for glyph in glyphs if glyph.isascii() and glyph.isalpha()), "")


def _tokens(characters: str) -> Tokens:
    return tuple(_TOKEN.findall(characters))


def _letters(text: str) -> list[str]:
    return re.findall(_LETTER, text)


def _spell(characters: str, leet: dict[int, int]) -> tuple[str, Tokens]:
    """Return the text with spaced letters joined and look-alike symbols as letters, and the runs."""
    runs: list[str] = []

    def join(match: re.Match[str]) -> str:
        symbols = re.findall(r"[\w@$!]", match[0])
        if sum(symbol.isalpha() for symbol in symbols) < max(2, len(symbols) // 2):
            return match[0]  # a row of numbers or dots
        runs.append("".join(symbols).rstrip("!").translate(leet))
        return runs[-1]

    joined = _SPACED_LETTERS.sub(join, characters)
    return _PIECE.sub(lambda match: _spell_piece(match[0], leet), joined), tuple(runs)


def _spell_piece(piece: str, leet: dict[int, int]) -> str:
    core = piece.rstrip("!|").lstrip("!|€£")
    if core.isalpha() or not any(map(str.isalpha, core)) or _MEASURE.fullmatch(core):
        return piece
    return core.translate(leet)


def fold_pattern(pattern: str) -> str:
    """Return a regular expression with its letters folded; its syntax, which is ASCII, stays."""
    return "".join(character if character.isascii() else _fold_character(character) for character in pattern)
