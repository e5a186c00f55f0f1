"""Place in a distributed trace, as the header `traceparent` of W3C's Trace Context carries it."""

import re
from dataclasses import dataclass

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_LONGEST = 256  # later versions of the header may say more than the 55 characters of this one
_SAMPLED = 1


@dataclass(frozen=True)
class TraceContext:
    """A span of a trace, by their ids in hex. If it `is_sampled`, what belongs to it is recorded too."""

    trace_id: str
    span_id: str
    is_sampled: bool

    @classmethod
    def parse(cls, header: str | None) -> "TraceContext | None":
        """Return the place that a `traceparent` names; `None` without one, and for one that is malformed."""
        if not header or len(header) > _LONGEST or not (found := _FORM.fullmatch(header)):
            return None
        version, trace_id, span_id, flags, further = found.groups()
        if version == "ff" or (version == "00" and further) or not int(trace_id, 16) or not int(span_id, 16):
            return None
        return cls(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}"
