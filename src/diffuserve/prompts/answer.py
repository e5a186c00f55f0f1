"""What a language model answered, made into a prompt. Pure."""

import re

import orjson

from diffuserve.domain.params import MAX_PROMPT_CHARACTERS
from diffuserve.prompts.base import Expansion, ExpansionOutcome
from diffuserve.prompts.cleaning import clean

# Cleaning takes long for long texts; this leaves room for what is stripped.
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


def read_answer(prompt: str, content: bytes) -> Expansion:
    """From the body of a chat completion; `prompt` is the original, for where it holds none."""
    try:
        choice = orjson.loads(content)["choices"][0]
        message = choice["message"]
        finish_reason, refusal, text = choice.get("finish_reason"), message.get("refusal"), message["content"]
    except (ValueError, LookupError, TypeError, AttributeError):
        return _failed(prompt, "the answer is no chat completion")
    if refusal or finish_reason == "content_filter":
        return _refused(prompt)
    if not isinstance(text, str):
        return _failed(prompt, "the answer has no text")
    return _read_text(prompt, text, is_cut=finish_reason == "length")


def _read_text(prompt: str, text: str, is_cut: bool) -> Expansion:
    answer = _without_thoughts(text)
    if answer is None:
        return _failed(prompt, "the answer ended before its thoughts did; allow more tokens")
    written = clean(unwrapped(answer[:_MAX_CONTENT_CHARACTERS]))
    if not written:
        return _failed(prompt, "the answer is empty")
    if is_refusal(written):
        return _refused(prompt)
    if is_cut or len(written) > MAX_PROMPT_CHARACTERS:
        written = _cut(written)
    return Expansion(written, ExpansionOutcome.EXPANDED)


def _without_thoughts(text: str) -> str | None:
    """Models that reason may write their thoughts first; `None` where there is nothing else."""
    rest = _END_OF_THOUGHTS.split(text)[-1]
    return None if _THOUGHTS.match(rest) else rest


def unwrapped(text: str) -> str:
    """Without the fence of a block of code, and without quotes around all of it."""
    inside = _without_fence(text.strip())
    while len(inside) > 1 and _QUOTES.get(inside[0]) == inside[-1] and not _quotes_several(inside):
        inside = inside[1:-1].strip()
    return inside


def _without_fence(text: str) -> str:
    if not text.startswith(_FENCE):
        return text
    text = text.removeprefix(_FENCE).removesuffix(_FENCE)
    first, _, rest = text.partition("\n")
    return (rest if rest and _LANGUAGE.fullmatch(first.strip()) else text).strip()


def _quotes_several(text: str) -> bool:
    """Whether the quotes at both ends belong to different things: "a cat" beside "a dog"."""
    between = text[1:-1]
    return text[0] != "'" and text[0] in between and text[-1] in between


def is_refusal(text: str) -> bool:
    """Whether the model speaks of itself instead of the image."""
    return _REFUSAL.match(text) is not None


def _cut(text: str) -> str:
    """Within the limit for prompts, at the end of a word."""
    short = text[:MAX_PROMPT_CHARACTERS]
    if len(short) < len(text) and text[len(short)] == " ":
        return short
    return short.rpartition(" ")[0] or short


def _refused(prompt: str) -> Expansion:
    return Expansion(prompt, ExpansionOutcome.REFUSED, "the language model refused to expand the prompt")


def _failed(prompt: str, message: str) -> Expansion:
    return Expansion(prompt, ExpansionOutcome.ERROR, message)
