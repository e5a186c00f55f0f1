"""Folding: hidden spellings of a word become the word."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.safety.policies import folding
from diffuserve.safety.policies.folding import fold, fold_characters, fold_pattern, lookalikes
from support.durations import MAX_GROWTH, growth

EVIL = {
    "letters alone": "a " * 1_000,
    "stars": "a*" * 1_000,
    "one word": "a" * 2_000,
    "signs": "@" * 2_000,
    "leet": "a!" * 1_000,
    "sizes": "1x" * 1_000,
    "accents in two orders": "a" + "\u0316\u0301" * 1_000,
    "a sign that stands for a sentence": "\ufdfa" * 2_000,
    "blanks": " " * 2_000,
}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("n u d e", "nude"),
        ("n.u.d.e", "nude"),
        ("n u d 3", "nude"),
        ("na.ked", "naked"),
        ("nud3", "nude"),
        ("k1ll", "kill"),
        ("$ex", "sex"),
        ("he11o", "hello"),
        ("n\u0430k\u0435d", "naked"),
        ("ｎａｋｅｄ", "naked"),
        ("𝓷𝓾𝓭𝓮", "nude"),
        ("🅽🆄🅳🅴", "nude"),
        ("ñüdé", "nude"),
        ("nu\u200bde", "nude"),
        ("nu\u00adde", "nude"),
    ],
)
def test_a_hidden_word_is_in_some_reading(text: str, word: str) -> None:
    assert any(word in reading for reading in fold(f"the {text} thing").readings)


@pytest.mark.parametrize("token", ["4k", "1360x768", "85mm", "80s", "1st", "2024"])
def test_measures_keep_their_digits(token: str) -> None:
    folded = fold(f"a lake, {token}, wide")
    assert folded.spelled == folded.plain == ("a", "lake", token, "wide")


def test_spaced_letters_form_a_run() -> None:
    assert fold("w h i t e  p a p e r").runs == ("whitepaper",)
    assert fold("1 2 3 4 5").runs == ()


@given(st.text(max_size=200))
def test_folding_accepts_any_text_and_is_idempotent(text: str) -> None:
    folded = fold(text)
    assert fold(folded.text).plain == folded.plain
    assert fold_characters(fold_characters(text)) == fold_characters(text)


@given(st.text("abz ", max_size=30))
def test_plain_words_are_folded_as_any_other_text(text: str) -> None:
    assert fold(text) == folding._fold(text)


def test_vowel_signs_belong_to_the_word_and_accents_do_not() -> None:
    assert fold("बच्चे की मूर्ति").plain == ("बच्चे", "की", "मूर्ति")
    assert fold("ребёнок") == fold("ребенок")
    assert fold("طـــفل").plain == fold("طفل").plain
    assert fold("کودک").plain == fold("كودك").plain


def test_lookalikes_are_single_characters_with_latin_letters() -> None:
    for character, letters in lookalikes().items():
        assert not character.isascii()
        assert letters
        assert all(re.fullmatch("[a-z]{1,2}", letter) for letter in letters[:-1]), character


def test_a_text_with_lookalikes_is_kept_beside_what_folding_makes_of_it() -> None:
    assert fold("a ηαked ₦ymph").disguised == ("a", "ηαked", "₦ymph")
    assert fold("a naïve café").disguised == ()


def test_the_letters_of_a_pattern_are_folded_and_its_syntax_stays() -> None:
    assert fold_pattern(r"(?:^| )blå\pL{0,3}\b") == r"(?:^| )bla\pL{0,3}\b"


def test_every_character_reaches_its_final_form() -> None:
    once = [fold_characters(chr(code)) for code in range(0x3000)]
    assert [fold_characters(text) for text in once] == once


@pytest.mark.parametrize("text", EVIL.values(), ids=EVIL)
def test_the_time_grows_with_the_length_of_the_worst_text(text: str) -> None:
    assert growth(fold, text) < MAX_GROWTH
