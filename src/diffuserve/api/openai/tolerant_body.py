"""Base of OpenAI's bodies: what it does not know is taken, and named in the response as ignored."""

from collections.abc import Iterator
from functools import cached_property
from itertools import islice

from pydantic import ConfigDict

from diffuserve.api.http.field_errors import likely_field
from diffuserve.api.submit.request_bodies import RequestBody

MAX_NAMED = 20
"""Ignored fields that a response names."""
_MAX_CHARACTERS = 64
_MAX_COMPARED = 5  # each takes up to a millisecond, in which no other request is served
_SAYS_NOTHING = (None, "", "auto")
OWN_TO_OPENAI = frozenset(
    {
        "complexity",
        "frame_count",
        "frame_duration_ms",
        "input_fidelity",
        "markup",
        "moderation",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_rewriter",
        "service_tier",
        "store",
        "style",
        "svg",
    }
)
"""Fields of OpenAI's client that mean nothing to these models; others may be slips of the pen."""


class TolerantBody(RequestBody):
    """Body of OpenAI's API. Its newest client sends fields that this server has never heard of."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    @property
    def ignored(self) -> tuple[str, ...]:
        """Names of the fields that say something, and change nothing."""
        return tuple(name[:_MAX_CHARACTERS] for name in islice(self._unknown(), MAX_NAMED))

    @property
    def asked_size(self) -> str | None:
        """The size that the body names, if it may name one."""
        size: str | None = getattr(self, "size", None)
        return size

    @cached_property
    def slips(self) -> tuple[str, ...]:
        """Warnings of the first ignored fields whose names resemble those of others."""
        named = [name for name in self.ignored if name.partition("[")[0] not in OWN_TO_OPENAI]
        meant = [(name, likely_field(name, type(self))) for name in named[:_MAX_COMPARED]]
        return tuple(f"{name} was ignored; did you mean {field}?" for name, field in meant if field)

    def _unknown(self) -> Iterator[str]:
        for name, value in (self.model_extra or {}).items():
            if value not in _SAYS_NOTHING:
                yield name
