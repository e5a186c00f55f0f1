"""Patterns are what RE2 takes: no search is slower than linear in the text."""

import pytest

from diffuserve.safety.policies.patterns import MAX_INSTRUCTIONS, PatternList, compile_pattern
from diffuserve.safety.policies.policy_file import load_policy
from support.durations import MAX_GROWTH, growth


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(?=nude)n", "no lookaround"),
        ("(?<!not )nude", "no lookaround"),
        (r"(nude)\1", "no backreferences"),
        ("nude++", "possessive"),
        ("(", "missing )"),
        ("a?", "matches the empty text"),
        (r"\pL{0,50}x", "instructions, more than 10,000"),
        ("a{1001}", "invalid repetition size"),
        ("x" * 501, "longer than 500 characters"),
        ("\ud800", "not valid Unicode"),
    ],
)
def test_patterns_that_re2_cannot_search_in_linear_time_are_refused(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    "pattern", [r"\bgr[ae]y (?:cat|dog)s?\b", r"grey \w* ?cats", "two .+ cats", "GREY CATS"]
)
def test_patterns_may_repeat_without_bound_and_hold_capitals(pattern: str) -> None:
    assert compile_pattern(pattern).search("two grey cats")


def test_matches_are_yielded_pattern_by_pattern_with_characters_as_positions() -> None:
    patterns = PatternList(["cats?", "blå"])
    found = [(match.pattern, match.start, match.end) for match in patterns.find_all("blå cat, blå cats")]
    assert found == [("cats?", 4, 7), ("cats?", 13, 17), ("blå", 0, 3), ("blå", 9, 12)]


@pytest.mark.parametrize("patterns", [[], ["cat"]])
def test_a_text_without_a_match_yields_nothing(patterns: list[str]) -> None:
    assert list(PatternList(patterns).find_all("a red fox")) == []


def test_patterns_too_large_to_be_searched_as_one_are_searched_each() -> None:
    large = [rf"\pL{{1,8}} {i} cats" for i in range(60)]
    assert [match.pattern for match in PatternList(large).find_all("漢 59 cats")] == [large[59]]


def test_patterns_that_take_re_exponential_time_take_linear_time_here() -> None:
    pattern = compile_pattern("(?:a|aa)+b|(?:a*)*c")
    assert pattern.search("a" * 100_000) is None
    assert growth(pattern.search, "a" * 20_000) < MAX_GROWTH


def test_the_shipped_patterns_are_far_from_the_limit() -> None:
    policy = load_policy()
    lists = [*policy.lists.values(), *(category.words for category in policy.categories.values())]
    sizes = [compile_pattern(pattern).programsize for words in lists for pattern in words.patterns]
    assert max(sizes) < MAX_INSTRUCTIONS / 10
