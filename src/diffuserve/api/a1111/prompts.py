"""Prompts in AUTOMATIC1111's syntax, in which adapters are named. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from diffuserve.domain.errors import InvalidParams

_NETWORK = re.compile(r"<(?P<kind>lora|lyco|hypernet):(?P<name>[^:<>]{1,200})(?P<rest>:[^<>]{0,100})?>")


def without_networks(prompt: str) -> tuple[str, Sequence[Mapping[str, Any]], Sequence[str]]:
    """Return a prompt without `<lora:NAME:WEIGHT>`, the adapters named so, and what is not known here.

    Of several weights, which some adapters have by layers, the first counts. Raise `InvalidParams` for a
    weight that is no number.
    """
    found = list(_NETWORK.finditer(prompt))
    adapters = [_adapter(each) for each in found if each["kind"] != "hypernet"]
    unknown = [each[0] for each in found if each["kind"] == "hypernet"]
    return _NETWORK.sub("", prompt).strip() if found else prompt, adapters, unknown


def _adapter(found: re.Match[str]) -> Mapping[str, Any]:
    first = (found["rest"] or "")[1:].partition(":")[0].rpartition("=")[2]
    try:
        return {"name": found["name"].strip(), "weight": float(first) if first else 1.0}
    except ValueError as error:
        raise InvalidParams("prompt", found[0], "is not <lora:NAME:WEIGHT> with a number") from error
