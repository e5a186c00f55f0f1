"""The adapters of a request."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.sendable import Sendable
from diffuserve.domain.text.path_parts import SHA256

MAX_ADAPTERS = 4
MAX_ADAPTER_WEIGHT = 10.0
MAX_ADAPTER_NAME_CHARACTERS = 100
ADAPTER_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_ADAPTER_NAME_CHARACTERS - 1}}}")


@dataclass(frozen=True)
class AdapterUse(Sendable):
    """An adapter that a request asks for by its `name`, and how much of it: 1 as it was trained, 0 nothing.

    `digest` is the SHA-256 of its file, as a server knew it when it accepted the request: the request keeps
    that adapter even if its name means another one by now. Without it the name is one of the engine's own.
    Raise `InvalidParams` for a name that no adapter has, a weight outside -10…10, and a malformed digest.
    """

    name: str
    weight: float = 1.0
    digest: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not ADAPTER_NAME.fullmatch(self.name):
            remedy = "must be a name of letters, digits, '.', '_' and '-'"
            raise InvalidParams("adapters", self.name, remedy)
        is_number = isinstance(self.weight, int | float) and not isinstance(self.weight, bool)
        if not is_number or not math.isfinite(self.weight) or abs(self.weight) > MAX_ADAPTER_WEIGHT:
            remedy = f"the weight of adapter {self.name!r} must be a number in -10…10"
            raise InvalidParams("adapters", self.weight, remedy)
        is_digest = isinstance(self.digest, str) and SHA256.fullmatch(self.digest)
        if self.digest is not None and not is_digest:
            raise InvalidParams("adapters", self.digest, "a digest has 64 hexadecimal digits")
        object.__setattr__(self, "weight", float(self.weight))

    @classmethod
    def of(cls, value: object) -> "AdapterUse":
        """Return what a value says: a use, its name and weight by those names, or `NAME[:WEIGHT]`.

        Raise `InvalidParams` for anything else, such as a digest: who asks gives names.
        """
        if isinstance(value, AdapterUse):
            return value
        if isinstance(value, str):
            return cls._parsed(value)
        if isinstance(value, Mapping) and "name" in value and not value.keys() - {"name", "weight"}:
            return cls(**value)
        raise InvalidParams("adapters", value, "must have a name and may have a weight")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are set, ready for JSON."""
        digest = {} if self.digest is None else {"digest": self.digest}
        return {"name": self.name, "weight": self.weight, **digest}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "AdapterUse":
        """Build a use from the output of `to_dict`. Raise `InvalidParams` for bad values."""
        return cls(values["name"], values.get("weight", 1.0), values.get("digest"))

    @classmethod
    def _parsed(cls, text: str) -> "AdapterUse":
        name, separator, weight = text.partition(":")
        try:
            return cls(name, float(weight) if separator else 1.0)
        except ValueError as error:
            if isinstance(error, InvalidParams):
                raise
            raise InvalidParams("adapters", text, "must be NAME or NAME:WEIGHT") from error


def with_digests(
    uses: Sequence[AdapterUse] | None, digests: Mapping[str, str | None]
) -> tuple[AdapterUse, ...] | None:
    """Return the uses with the digests of their names, where these are known; `None` if there are none."""
    return tuple(replace(use, digest=digests.get(use.name)) for use in uses or ()) or None


def adapter_uses(value: object) -> tuple[AdapterUse, ...] | None:
    """Return the uses that a request's value says; `None` if there are none.

    Raise `InvalidParams` for more than four, and for one adapter twice.
    """
    if value is None:
        return None
    if not isinstance(value, tuple | list):
        raise InvalidParams("adapters", value, "must be a list of adapters, each with a name and a weight")
    uses = tuple(map(AdapterUse.of, value))
    if len(uses) > MAX_ADAPTERS:
        raise InvalidParams("adapters", len(uses), f"at most {MAX_ADAPTERS} adapters are allowed")
    names = [use.name for use in uses]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidParams("adapters", twice, "is given twice; give each adapter once")
    return uses or None


def stored_uses(values: Mapping[str, Any]) -> tuple[AdapterUse, ...]:
    """Return the adapters in the `input` of a job whose files are in the store."""
    uses = (AdapterUse.from_dict(each) for each in values.get("adapters") or ())
    return tuple(use for use in uses if use.digest is not None)
