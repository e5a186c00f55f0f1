"""The normal form of prompts."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.prompts.cleaning import clean

# Visible format characters of Unicode: number signs and the like of Arabic, Syriac and Kaithi.
VISIBLE = {
    *range(0x600, 0x606),
    *(0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD),
}
ODD = st.sampled_from(
    "é \u200b\u200d\u0301\u0344\u00a8\ufdfa\u1160\u3164\ufb01\u0345\u0f73\u2126\x1c\x85\u3000"
)


@pytest.mark.parametrize(
    ("prompt", "cleaned"),
    [
        ("a red circle", "a red circle"),
        ("  a \t red\r\n\n circle ", "a red circle"),
        ("a\u00a0red\u3000circle\u2028", "a red circle"),
        ("ａ ｒｅｄ ①", "a red 1"),
        ("ﬁre", "fire"),
        ("r\u200be\u200cd\ufeff \u00adstar\u2060", "red star"),
        ("\u202ared\u202e star\u2066", "red star"),
        ("red\x00\x07\x1b star\x7f", "red star"),
        ("e\u200b\u0301", "é"),
        ("\u3164\u115f \u200b", ""),
        ("❤\ufe0f 👩\u200d🚀", "❤ 👩🚀"),
        ("Ѕtаr 5t4r", "Ѕtаr 5t4r"),
        ("красный круг, 赤い丸, دائرة", "красный круг, 赤い丸, دائرة"),
    ],
)
def test_a_prompt_is_cleaned(prompt: str, cleaned: str) -> None:
    assert clean(prompt) == cleaned


@given(st.text() | st.text(ODD))
def test_cleaning_is_idempotent(prompt: str) -> None:
    once = clean(prompt)
    assert clean(once) == once


@given(st.text() | st.text(ODD))
def test_clean_text_is_normalized_and_has_single_spaces(prompt: str) -> None:
    cleaned = clean(prompt)
    assert unicodedata.is_normalized("NFKC", cleaned)
    assert cleaned == " ".join(cleaned.split())
    assert len(cleaned) <= 18 * len(prompt)


def test_control_and_format_characters_are_removed() -> None:
    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]
    unseen = [c for c in every if unicodedata.category(c) in ("Cc", "Cf") and ord(c) not in VISIBLE]
    assert [c for c in unseen if clean(f"a{c}b") not in ("ab", "a b")] == []
    assert all(clean(chr(code)) == chr(code) for code in VISIBLE)


def test_letters_marks_and_signs_are_kept() -> None:
    gone = [
        chr(code)
        for code in range(0x110000)
        if unicodedata.category(chr(code))[0] in "LMNPS" and clean(f"({chr(code)})") == "()"
    ]
    invisible = {0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0, *range(0x180B, 0x1810)}
    selectors = {*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)}
    assert {ord(c) for c in gone} - invisible - selectors == set()
