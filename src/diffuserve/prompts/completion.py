"""Prompts from the text that a language model generated. Pure."""

import re

import orjson

from diffuserve.domain.requests.request_bounds import MAX_PROMPT_CHARACTERS
from diffuserve.prompts.base import Expansion, ExpansionOutcome
from diffuserve.prompts.cleaning import clean

# Cleaning is slow for long texts; this leaves room for what is stripped.
_MAX_CONTENT_CHARACTERS = 4 * MAX_PROMPT_CHARACTERS
_END_OF_THOUGHTS = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_THOUGHTS = re.compile(r"\s*<think(?:ing)?>", re.IGNORECASE)
_FENCE = "```"
_LANGUAGE = re.compile(r"[\w-]*")
_QUOTES = {'"': '"', "'": "'", "`": "`", "“": "”", "„": "“", "‘": "’", "«": "»", "「": "」"}
_REFUSAL = re.compile(
    r"(?:i['’]?m |i am |we['’]?re |we are )?(?:so |very |really |truly )*(?:sorry|afraid)"
    r"(?:[.!]?$|[,.:;!—–-]* (?:but |that )?(?:i|we|this|your|the request|as an?)\b)"
    r"|(?:i|we) (?:can['’]?t|cannot|can not|won['’]?t|will not|(?:must|have to|need to)? ?decline|"
    r"(?:don['’]?t|do not) feel comfortable)\b"
    r"|(?:i['’]?m|i am|we are) (?:unable|not able|not allowed|not comfortable)\b"
    r"|(?:unfortunately|(?:my )?apologies|i apologi[sz]e)[,.]? (?:but |for |that )?(?:i|we|this|the|any)\b"
    r"|as an (?:ai|artificial|assistant|language model)\b",
    re.IGNORECASE,
)


def parse_completion(prompt: str, content: bytes) -> Expansion:
    """Return the expansion in `content`, the body of a chat completion.

    `prompt` is the original, which the result holds if the body is invalid, empty or a refusal.
    """
    try:
        choice = orjson.loads(content)["choices"][0]
        message = choice["message"]
        finish_reason, refusal, text = choice.get("finish_reason"), message.get("refusal"), message["content"]
    except (ValueError, LookupError, TypeError, AttributeError):
        return _failed(prompt, "the response is not a chat completion")
    if refusal or finish_reason == "content_filter":
        return _refused(prompt)
    if not isinstance(text, str):
        return _failed(prompt, "the response has no text")
    return _parse_text(prompt, text, is_truncated=finish_reason == "length")


def _parse_text(prompt: str, text: str, is_truncated: bool) -> Expansion:
    final_text = _strip_thoughts(text)
    if final_text is None:
        return _failed(prompt, "the response ended within the model's reasoning; allow more tokens")
    expanded = clean(unwrap(final_text[:_MAX_CONTENT_CHARACTERS]))
    if not expanded:
        return _failed(prompt, "the response is empty")
    if is_refusal(expanded):
        return _refused(prompt)
    if is_truncated or len(expanded) > MAX_PROMPT_CHARACTERS:
        expanded = _truncate(expanded)
    return Expansion(expanded, ExpansionOutcome.EXPANDED)


def _strip_thoughts(text: str) -> str | None:
    """Return the text after a model's reasoning; `None` if the reasoning never ends."""
    rest = _END_OF_THOUGHTS.split(text)[-1]
    return None if _THOUGHTS.match(rest) else rest


def unwrap(text: str) -> str:
    """Strip the fence of a code block, and quotes that enclose the whole text."""
    inside = _strip_fence(text.strip())
    while len(inside) > 1 and _QUOTES.get(inside[0]) == inside[-1] and not _has_several_quotations(inside):
        inside = inside[1:-1].strip()
    return inside


def _strip_fence(text: str) -> str:
    if not text.startswith(_FENCE):
        return text
    text = text.removeprefix(_FENCE).removesuffix(_FENCE)
    first, _, rest = text.partition("\n")
    return (rest if rest and _LANGUAGE.fullmatch(first.strip()) else text).strip()


def _has_several_quotations(text: str) -> bool:
    """Return whether the quotes at both ends belong to different quotations: "a cat" beside "a dog"."""
    between = text[1:-1]
    return text[0] != "'" and text[0] in between and text[-1] in between


def is_refusal(text: str) -> bool:
    """Return whether the text begins as a model's refusal does."""
    return _REFUSAL.match(text) is not None


def _truncate(text: str) -> str:
    """Cut the text at the limit for prompts, at the end of a word if it has several."""
    short = text[:MAX_PROMPT_CHARACTERS]
    if len(short) < len(text) and text[len(short)] == " ":
        return short
    return short.rpartition(" ")[0] or short


def _refused(prompt: str) -> Expansion:
    return Expansion(prompt, ExpansionOutcome.REFUSED, "the language model refused to expand the prompt")


def _failed(prompt: str, message: str) -> Expansion:
    return Expansion(prompt, ExpansionOutcome.ERROR, message)
