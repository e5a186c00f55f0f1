"""Null characters in JSON, which may be written as an escape, or only look like one."""

import json

import pytest

from diffuserve.domain.text.json_text import has_null_character


@pytest.mark.parametrize(
    ("text", "has_one"),
    [
        ("", False),
        ("a", False),
        ("\0", True),
        ("a\0b", True),
        ("\\u0000", False),
        ("\\\0", True),
        ("\\\\u0000", False),
        ("\\\\\0", True),
        ("\u0001", False),
    ],
)
def test_a_null_character_is_told_from_the_text_of_its_escape(text: str, has_one: bool) -> None:
    assert has_null_character(json.dumps([text, {text: 1}]).encode()) is has_one
