"""Words in disguise: look-alike letters of other scripts, and two letters swapped. Pure.

Such a spelling may stand for many words, so it is compared with those that are looked for.
"""

from collections.abc import Callable, Iterable

from diffuserve.safety.policies.folding import Folded, Tokens, fold_characters, lookalikes

_MIN_SWAPPED = 4  # letters; swapped letters make other words of shorter ones
_MIN_FOREIGN = 3  # letters; shorter foreign words look like other words by chance


class Spelling:
    """Finds the words that are looked for in their disguises."""

    def __init__(self, words: Iterable[str], known: Iterable[str] = ()) -> None:
        """`words` are looked for, and `known` ones are spelled as they should be; both are folded."""
        self._words = frozenset(words)
        self._known = frozenset(known) - self._words
        spelled = {form for word in self._words for form in (word, f"{word}s")}
        swapped = {form: word for word in sorted(spelled) for form in _swapped(word)}
        as_they_should_be = spelled | self._known
        self._swapped = {form: word for form, word in swapped.items() if form not in as_they_should_be}
        self._starts = {word[:length] for word in self._words for length in range(len(word) + 1)}

    def corrected(self, folded: Folded) -> list[Tokens]:
        """Return readings with what tokens of mixed scripts, and those with swapped letters, stand for."""
        mixed = tuple(self._unmask(token) if _is_mixed(token) else token for token in folded.disguised)
        readings = (_folded(mixed, folded.disguised), _changed(folded.spelled, self._unswap))
        return [reading for reading in readings if reading]

    def transcribed(self, folded: Folded) -> Tokens:
        """Return the reading in which words of foreign letters stand for those that they look like.

        A word of another language looks like one that is looked for by chance, so this reading is to be
        matched by itself. Other foreign words stay as they are. `()` if there is no such word.
        """
        return _changed(folded.disguised, self._unmask)

    def _unmask(self, token: str) -> str:
        """Return the word that a token with look-alike letters stands for, or the token."""
        if token.isascii() or (len(token) < _MIN_FOREIGN and not _is_mixed(token)):
            return token
        if fold_characters(token) in self._known:
            return token
        starts = {""}
        for character in token:
            letters = lookalikes().get(character) or (fold_characters(character),)
            starts = {start + letter for start in starts for letter in letters} & self._starts
        return min(starts & self._words, default=token)

    def _unswap(self, token: str) -> str:
        return self._swapped.get(token, token)


def _swapped(word: str) -> list[str]:
    """Return a word's forms with two neighboring letters swapped; its first, by which it is read, stays."""
    if len(word) < _MIN_SWAPPED:
        return []
    places = (i for i in range(1, len(word) - 1) if word[i] != word[i + 1])
    return [word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in places]


def _is_mixed(token: str) -> bool:
    return not token.isascii() and any(character.isascii() and character.isalpha() for character in token)


def _folded(tokens: Tokens, disguised: Tokens) -> Tokens:
    """Return the tokens folded; `()` if they are as they were in disguise."""
    return () if tokens == disguised else tuple(map(fold_characters, tokens))


def _changed(tokens: Tokens, change: Callable[[str], str]) -> Tokens:
    """Return the tokens, each changed; `()` if all stay as they are."""
    changed = tuple(map(change, tokens))
    return () if changed == tokens else changed
