"""The prompt in the body of a chat completion."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.requests.request_bounds import MAX_PROMPT_CHARACTERS
from diffuserve.prompts.base import Expansion, ExpansionOutcome
from diffuserve.prompts.completion import is_refusal, parse_completion, unwrap
from support.durations import MAX_GROWTH, growth

EXPANDED, REFUSED, ERROR = ExpansionOutcome.EXPANDED, ExpansionOutcome.REFUSED, ExpansionOutcome.ERROR


def read(content: Any, **choice: Any) -> Expansion:
    message = {"content": content} | choice.pop("message", {})
    return parse_completion("a cat", json.dumps({"choices": [{"message": message, **choice}]}).encode())


@pytest.mark.parametrize(
    ("content", "prompt"),
    [
        ("A cat on a sofa.", "A cat on a sofa."),
        ("  A cat\n\non a\u200b sofa. ", "A cat on a sofa."),
        ('"A cat on a sofa."', "A cat on a sofa."),
        ("“A cat on a sofa.”", "A cat on a sofa."),
        ("'A cat's sofa'", "A cat's sofa"),
        ('```\n"A cat on a sofa."\n```', "A cat on a sofa."),
        ("```text\nA cat on a sofa.\n```\n", "A cat on a sofa."),
        ("```A cat on a sofa.```", "A cat on a sofa."),
        ("```text\nA cat on a sofa.", "A cat on a sofa."),
        ("`A cat on a sofa.`", "A cat on a sofa."),
        ("<think>The user wants a cat.</think>\n\nA cat on a sofa.", "A cat on a sofa."),
        ("The user wants a cat.</think>A cat on a sofa.", "A cat on a sofa."),
        ('A sign that says "open"', 'A sign that says "open"'),
        ('"A" on a sign beside "B"', '"A" on a sign beside "B"'),
        ("Sorry-looking cats on a sofa", "Sorry-looking cats on a sofa"),
        ("I, a cat, in a portrait", "I, a cat, in a portrait"),
        ('"', '"'),
    ],
)
def test_the_prompt_is_the_models_text_without_its_wrapping(content: str, prompt: str) -> None:
    assert read(content) == Expansion(prompt, EXPANDED)


@pytest.mark.parametrize(
    "content",
    [
        "I'm sorry, but I can't help with that.",
        "I’m really sorry, I can’t assist with this request.",
        "Sorry, I cannot write that.",
        "I'm sorry.",
        "I am sorry, but as an assistant I must refuse.",
        "I can't help with that.",
        "I cannot create this content.",
        "I won't write this prompt.",
        "I'm unable to help with that.",
        "I must decline.",
        "Unfortunately, I can't do this.",
        "I apologize, but I cannot do that.",
        "As an AI language model, I cannot.",
        "\"I'm sorry, but I can't help with that.\"",
        "<think>This is bad.</think>I can't help with that.",
    ],
)
def test_refusals_are_recognized(content: str) -> None:
    expansion = read(content)
    assert (expansion.prompt, expansion.outcome) == ("a cat", REFUSED)


@pytest.mark.parametrize("text", ["A sorry cat", "Icannot", "Iceland, as an island", "I-beams", "We can"])
def test_descriptions_of_images_are_not_refusals(text: str) -> None:
    assert not is_refusal(text)


@pytest.mark.parametrize(
    "choice",
    [{"finish_reason": "content_filter"}, {"message": {"refusal": "No.", "content": None}}],
)
def test_refusals_reported_by_the_server_are_recognized(choice: dict[str, Any]) -> None:
    assert read("A cat", **choice).outcome is REFUSED


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"null",
        b"[]",
        b"{}",
        b'{"choices": []}',
        b'{"choices": {}}',
        b'{"choices": [null]}',
        b'{"choices": [{"message": null}]}',
        b'{"choices": [{"message": {}}]}',
        b'{"choices": [{"message": {"content": null}}]}',
        b'{"choices": [{"message": {"content": ["a"]}}]}',
        b'{"choices": [{"message": {"content": " \\u200b "}}]}',
        b'{"choices": [{"message": {"content": "\\ud800"}}]}',
        b'{"choices": [{"message": {"content": "<think>hm"}}]}',
        b"[" * 100_000,
        b'{"choices": [{"message": {"content": NaN}}]}',
    ],
)
def test_an_invalid_response_leaves_the_prompt_unchanged(body: bytes) -> None:
    expansion = parse_completion("a cat", body)
    assert (expansion.prompt, expansion.outcome) == ("a cat", ERROR)
    assert expansion.message


def test_a_long_text_is_truncated_at_a_word() -> None:
    prompt = read("word " * 1_000).prompt
    assert len(prompt) == MAX_PROMPT_CHARACTERS - 1
    assert prompt.endswith(" word")
    assert len(read("x" * 5_000).prompt) == MAX_PROMPT_CHARACTERS


def test_a_text_that_ran_out_of_tokens_loses_its_last_word() -> None:
    assert read("A cat on a so", finish_reason="length").prompt == "A cat on a"


@given(st.text(min_size=1), st.sampled_from(["stop", "length", None]))
def test_every_expanded_prompt_is_a_valid_parameter(content: str, finish_reason: str | None) -> None:
    expansion = read(content.encode("utf-8", "ignore").decode(), finish_reason=finish_reason)
    GenerationParams(prompt=expansion.prompt)


@pytest.mark.parametrize(
    "content",
    ["</think" * 4_000, "\u0301\u0316" * 5_000, "```" * 10_000, '"' * 25_000, " " * 25_000, "ﷺ" * 8_000],
)
def test_the_time_grows_with_the_length_of_a_completion(content: str) -> None:
    assert growth(read, content) < MAX_GROWTH


@given(st.text())
def test_unwrapping_only_strips_the_ends(text: str) -> None:
    assert unwrap(text) in text
