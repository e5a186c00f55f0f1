"""Texts that a policy's rules cannot read: of scripts without rules, or made of symbols. Pure."""

import unicodedata
from functools import lru_cache

from confusable_homoglyphs import categories

from diffuserve.safety.policies.folding import fold_characters
from diffuserve.safety.policies.policy import MINORS, Policy, WordList

_MIN_LETTERS = 2  # one letter of another script is a sign, as in a formula
_MAX_CACHED = 16_384
_NEUTRAL = {"COMMON", "INHERITED"}

Scripts = frozenset[str]


def readable_scripts(policy: Policy) -> Scripts:
    """Return the scripts, by their names in Unicode, in which the rules of `sexual_minors` have words."""
    return frozenset().union(*(_scripts_of(words) for words in _words_of_minors(policy)))


def unreadable_part(text: str, readable: Scripts) -> str | None:
    """Return what the rules cannot read in a text, for people; `None` if they can read it.

    That are two letters or more of scripts that are not `readable`, and symbols such as emoji if more than
    half of the visible characters are symbols.
    """
    if text.isascii():
        return None
    folded = fold_characters(text)
    unknown = [script for script in map(_script, folded) if script and script not in readable]
    if len(unknown) >= _MIN_LETTERS:
        return f"letters of scripts without rules: {', '.join(sorted(set(unknown)))}"
    visible = [character for character in folded if not character.isspace()]
    if 2 * sum(map(_is_symbol, visible)) > len(visible):
        return "more than half of its characters are symbols"
    return None


def _words_of_minors(policy: Policy) -> list[WordList]:
    category = policy.categories[MINORS]
    names = {name for combination in category.combinations for name in combination}
    words = {name: other.words for name, other in policy.categories.items()} | dict(policy.lists)
    named = [words[known] for known in words for name in names if _is_meant(name, known)]
    return [category.words, *named]


def _is_meant(name: str, known: str) -> bool:
    return known.startswith(name[:-1]) if name.endswith("*") else known == name


def _scripts_of(words: WordList) -> set[str]:
    texts = (*words.terms, *words.stems, *words.fragments, *words.patterns)
    return {script for text in texts for script in map(_script, fold_characters(text)) if script}


@lru_cache(_MAX_CACHED)
def _script(character: str) -> str:
    """Return the script of a letter; empty for what is no letter, or a letter of many scripts."""
    if not character.isalpha():
        return ""
    script: str = categories.alias(character)
    return "" if script in _NEUTRAL else script


@lru_cache(_MAX_CACHED)
def _is_symbol(character: str) -> bool:
    """Return whether a character is a symbol, private or unassigned; those of ASCII are punctuation here."""
    return not character.isascii() and unicodedata.category(character)[0] in {"S", "C"}
