"""Text as a reader takes it, for the check alone; what the model gets is never folded.

A word can be hidden from a list of words and still be read: `n u d e`, `nud3`, letters of other scripts,
letters that have no width. Folding undoes that. Where it is not certain what was meant there are several
readings, the views, and a rule holds if it holds in one of them. Everything takes time in proportion to the
text's length.
"""

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

from confusable_homoglyphs.confusables import confusables_data

Tokens = tuple[str, ...]

_MAX_CACHED = 16_384  # characters; a prompt has a few dozen
_MAX_ROUNDS = 8  # a character needs three at most to reach its last form
_MAX_EXPANSION = 4  # one Arabic character stands for eighteen; no hidden word needs that
_INVISIBLE = "\u115f\u1160\u3164\uffa0"  # letters by their category, and yet nothing is seen
_BLANK = "\u2800"  # a symbol by its category, and looks like a space
_DROPPED = {"Cc", "Cf", "Cs", "Mn", "Me"}
_NAMED_LETTER = re.compile(
    r"(?:LATIN (?:SMALL |CAPITAL )?LETTER|LATIN LETTER SMALL CAPITAL|REGIONAL INDICATOR SYMBOL LETTER"
    r"|(?:CROSSED )?(?:NEGATIVE )?(?:CIRCLED|SQUARED) LATIN CAPITAL LETTER) ([A-Z])(?: WITH .*)?"
)
_SMALL_CYRILLIC = dict(zip("вкмнт", "bkmht", strict=True))  # listed as look-alikes only as capitals
_APOSTROPHES = str.maketrans(dict.fromkeys("'`\u2018\u2019\u02bc", ""))

# Possessive, so that a long word without what is looked for is not read again from each of its letters.
_TOKEN = re.compile(r"[^\W_]++(?:\*++[^\W_]++)*+")  # a star within a word masks a letter
_PIECE = re.compile(r"[\w@$!|€£]+")
_MEASURE = re.compile(  # 4k, 85mm, 1st, 1360x768, 80s
    r"(?:\d+x)*\d+(?:x|k|p|d|s|m|mm|cm|km|in|ft|px|mp|fps|hz|gb|mb|g|kg|w|v|h|mph|am|pm|st|nd|rd|th|yo|bit)?"
)
_LEET = str.maketrans("0134578@$!|€£9", "oieastbasiielg")
_LEET_WITH_L = str.maketrans("0134578@$!|€£9", "oleastbaslielg")
_ALONE = re.compile(r"(?<!\w)[\w@$!](?:[^\w@$!]{1,3}[\w@$!]){2,}(?!\w)")
_GLUED = re.compile(r"(?<![^\W_])[^\W_]++(?:[-.~*^+|=]{1,2}[^\W_]++)++")


@dataclass(frozen=True)
class Folded:
    """The readings of one text, as tokens of lower-case letters and digits.

    `plain` leaves digits and the borders of words as they are. `spelled` reads digits and signs within words
    as letters, and joins letters that stand alone. `others` are readings that are right less often. `runs`
    are the letters that stood alone, each run without its spaces: where words begin in them is not known.
    """

    plain: Tokens
    spelled: Tokens
    others: tuple[Tokens, ...] = ()
    runs: Tokens = ()

    @property
    def views(self) -> tuple[Tokens, ...]:
        """Each reading once, the plain one first."""
        return tuple(dict.fromkeys((self.plain, self.spelled, *self.others)))

    @property
    def text(self) -> str:
        return " ".join(self.plain)


def fold(text: str) -> Folded:
    """Never raises, whatever the text is."""
    characters = fold_characters(text)
    spelled, runs = _spell(characters, _LEET)
    with_l, _ = _spell(characters, _LEET_WITH_L)
    glued = _GLUED.sub(lambda match: "".join(_letters(match[0])), spelled)
    others = (_tokens(with_l), _tokens(glued))
    return Folded(_tokens(characters), _tokens(spelled), others, runs)


def fold_characters(text: str) -> str:
    """In lower case, without accents and what has no width, in Latin letters where they look like these."""
    return "".join(map(_fold_character, text)).translate(_APOSTROPHES)


@lru_cache(_MAX_CACHED)
def _fold_character(character: str) -> str:
    # By characters, not by `unicodedata.normalize` on the text: sorting a long row of accents is quadratic.
    text = character
    for _ in range(_MAX_ROUNDS):
        before, text = text, "".join(map(_fold_once, text))
        if text == before:
            break
    return text[:_MAX_EXPANSION]


def _fold_once(character: str) -> str:
    if character.isspace() or character == _BLANK:
        return " "
    if character in _INVISIBLE or unicodedata.category(character) in _DROPPED:
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
    """The letters that a character of another script or shape looks like; empty if there are none."""
    if named := _NAMED_LETTER.fullmatch(unicodedata.name(character, "")):
        return named[1].lower()
    if character in _SMALL_CYRILLIC:
        return _SMALL_CYRILLIC[character]
    if not character.isalpha():
        return ""
    glyphs = (str(found["c"]) for found in confusables_data.get(character, ()))
    return next((glyph.lower() for glyph in glyphs if glyph.isascii() and glyph.isalpha()), "")


def _tokens(characters: str) -> Tokens:
    return tuple(_TOKEN.findall(characters))


def _letters(text: str) -> list[str]:
    return re.findall(r"[^\W_]", text)


def _spell(characters: str, leet: dict[int, int]) -> tuple[str, Tokens]:
    """With digits and signs as letters and with runs joined; the runs."""
    runs: list[str] = []

    def join(match: re.Match[str]) -> str:
        signs = re.findall(r"[\w@$!]", match[0])
        if sum(sign.isalpha() for sign in signs) < max(2, len(signs) // 2):
            return match[0]  # numbers, or dots
        runs.append("".join(signs).rstrip("!").translate(leet))
        return runs[-1]

    joined = _ALONE.sub(join, characters)
    return _PIECE.sub(lambda match: _spell_piece(match[0], leet), joined), tuple(runs)


def _spell_piece(piece: str, leet: dict[int, int]) -> str:
    core = piece.rstrip("!|").lstrip("!|€£")
    if core.isalpha() or not any(map(str.isalpha, core)) or _MEASURE.fullmatch(core):
        return piece
    return core.translate(leet)
