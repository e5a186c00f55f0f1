"""What prompts written for other programs say beside words: `<lora:NAME:WEIGHT>` and `(words:1.3)`. Pure."""

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

from diffuserve.domain.errors import InvalidParams

WEIGHTS: Final = "weights"
SYNTAXES: Final = ("text", WEIGHTS)
"""How a prompt is read: as text alone, or with the weights of words."""

MOST_WEIGHT: Final = 4.0
_NETWORK = re.compile(r"<(?P<kind>lora|lyco|hypernet):(?P<name>[^:<>]{1,200})(?P<rest>:[^<>]{0,100})?>")
_WEIGHTED = re.compile(r"\([^()]{1,200}:\s*[\d.]{1,8}\s*\)")
_PIECE = re.compile(r"\\[()\[\]\\]|[(\[]|:\s*([\d.]{1,8})\s*\)|[)\]]|[^\\()\[\]:]+|.", re.DOTALL)
_CLOSING = {"(": ")", "[": "]"}
_STEPS = {"(": 1.1, "[": 1 / 1.1}


class WeightedWords(NamedTuple):
    """Words of a prompt, without brackets, and how much they count: 1 as they are."""

    words: str
    weight: float


def without_networks(prompt: str) -> tuple[str, Sequence[Mapping[str, Any]], Sequence[str]]:
    """Return a prompt without `<lora:NAME:WEIGHT>`, the adapters named so, and what is not known here.

    Of several weights, which some adapters have by layers, the first counts. Raise `InvalidParams` for a
    weight that is no number.
    """
    found = list(_NETWORK.finditer(prompt))
    adapters = [_adapter(each) for each in found if each["kind"] != "hypernet"]
    unknown = [each[0] for each in found if each["kind"] == "hypernet"]
    return _NETWORK.sub("", prompt).strip() if found else prompt, adapters, unknown


def with_named_adapters(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of a request with the adapters that its prompt names beside those of its own.

    Raise `InvalidParams` for a weight that is no number.
    """
    prompt, found, _ = without_networks(values.get("prompt") or "")
    if not found:
        return values
    return {**values, "prompt": prompt, "adapters": [*(values.get("adapters") or ()), *found]}


def syntax_warnings(prompt: str, reads_weights: bool) -> tuple[str, ...]:
    """Return warnings of what is read as text though other programs read more in it.

    `reads_weights`: the model can read weights of words, and was not asked to.
    """
    warnings = []
    if found := _NETWORK.search(prompt):
        warnings.append(f"{found[0]} in the prompt is read as text; give adapters instead")
    if found := _WEIGHTED.search(prompt):
        remedy = f"give prompt_syntax {WEIGHTS!r}" if reads_weights else "this model has no weights of words"
        warnings.append(f"{found[0]} in the prompt is read as text; {remedy}")
    return tuple(warnings)


def weighted_words(prompt: str) -> list[WeightedWords]:
    r"""Return the words of a prompt with their weights, by AUTOMATIC1111's rules.

    `(words)` count 1.1 times as much, `[words]` by as much less, `(words:1.3)` 1.3 times; brackets nest, one
    that is never closed counts to the end, and `\(` is a bracket of the text. Weights are 0…4.
    """
    pieces: list[str] = []
    weights: list[float] = []
    open_at: list[tuple[str, int]] = []
    for found in _PIECE.finditer(prompt):
        piece, number = found[0], found[1]
        if piece in _CLOSING:
            open_at.append((piece, len(pieces)))
        elif open_at and open_at[-1][0] == "(" and number is not None and _is_number(number):
            _weigh(weights, open_at.pop()[1], float(number))
        elif open_at and piece == _CLOSING[open_at[-1][0]]:
            bracket, start = open_at.pop()
            _weigh(weights, start, _STEPS[bracket])
        else:
            pieces.append(piece[1:] if piece[0] == "\\" and len(piece) > 1 else piece)
            weights.append(1.0)
    for bracket, start in open_at:
        _weigh(weights, start, _STEPS[bracket])
    return _joined(pieces, weights)


def _weigh(weights: list[float], start: int, factor: float) -> None:
    weights[start:] = [min(weight * factor, MOST_WEIGHT) for weight in weights[start:]]


def _joined(pieces: Sequence[str], weights: Sequence[float]) -> list[WeightedWords]:
    """Return pieces with those beside one another that weigh the same as one."""
    return [
        WeightedWords("".join(words for words, _ in alike), weight)
        for weight, alike in groupby(zip(pieces, weights, strict=True), key=itemgetter(1))
    ]


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d*\.?\d+|\d+\.", text) is not None


def _adapter(found: re.Match[str]) -> Mapping[str, Any]:
    first = (found["rest"] or "")[1:].partition(":")[0].rpartition("=")[2]
    try:
        return {"name": found["name"].strip(), "weight": float(first) if first else 1.0}
    except ValueError as error:
        raise InvalidParams("prompt", found[0], "is not <lora:NAME:WEIGHT> with a number") from error
