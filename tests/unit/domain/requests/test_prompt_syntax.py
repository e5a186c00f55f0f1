"""Weights of words by AUTOMATIC1111's rules, and warnings of what is read as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.domain.requests.prompt_syntax import (
    MOST_WEIGHT,
    syntax_warnings,
    weighted_words,
    with_named_adapters,
)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a red circle", [("a red circle", 1)]),
        ("a (red) circle", [("a ", 1), ("red", 1.1), (" circle", 1)]),
        ("a ((red)) [circle]", [("a ", 1), ("red", 1.1**2), (" ", 1), ("circle", 1 / 1.1)]),
        ("a (red:1.5) circle", [("a ", 1), ("red", 1.5), (" circle", 1)]),
        ("((red:1.2) circle:2)", [("red", 2.4), (" circle", 2)]),
        ("(a (red) circle", [("a ", 1.1), ("red", 1.1**2), (" circle", 1.1)]),
        (r"a \(red\) circle", [("a (red) circle", 1)]),
        ("at 12:30, a ) and a ]", [("at 12:30, a ) and a ]", 1)]),
        ("(red:9)", [("red", MOST_WEIGHT)]),
        ("[red:0.5]", [("red:0.5", 1 / 1.1)]),
        ("", []),
    ],
)
def test_brackets_weigh_words(prompt: str, expected: list[tuple[str, float]]) -> None:
    found = weighted_words(prompt)
    assert [words for words, _ in found] == [words for words, _ in expected]
    assert [weight for _, weight in found] == pytest.approx([weight for _, weight in expected])


@given(st.text(alphabet="ab :()[]\\1.,", max_size=40))
def test_no_character_but_brackets_and_weights_is_lost(prompt: str) -> None:
    found = weighted_words(prompt)
    assert all(0 <= weight <= MOST_WEIGHT for _, weight in found)
    letters = [each for each in "".join(words for words, _ in found) if each in "ab"]
    assert letters == [each for each in prompt if each in "ab"]


def test_what_is_read_as_text_is_told_with_what_to_give_instead() -> None:
    (network,) = syntax_warnings("a fox <lora:pixel:0.8>", reads_weights=True)
    assert "<lora:pixel:0.8>" in network
    assert "adapters" in network
    assert "prompt_syntax 'weights'" in syntax_warnings("a (red:1.3) fox", reads_weights=True)[0]
    assert "no weights" in syntax_warnings("a (red:1.3) fox", reads_weights=False)[0]
    assert syntax_warnings("a fox (red), 12:30", reads_weights=False) == ()


def test_adapters_that_a_prompt_names_stand_beside_those_of_the_request() -> None:
    given = {"prompt": "a fox <lora:pixel:0.8>", "adapters": [{"name": "ink", "weight": 1.0}]}
    assert with_named_adapters(given) == {
        "prompt": "a fox",
        "adapters": [{"name": "ink", "weight": 1.0}, {"name": "pixel", "weight": 0.8}],
    }
    assert with_named_adapters({"prompt": "a < b"}) == {"prompt": "a < b"}
