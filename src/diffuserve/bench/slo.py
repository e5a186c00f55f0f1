"""Objectives: how many requests must have their images within how long."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from diffuserve.domain.errors import InvalidParams

_WRITTEN = re.compile(r"p(?P<percent>\d{1,2}(?:\.\d+)?)\s*<=?\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|m)")
_OF_AIPERF = re.compile(r"request_latency:(?P<number>\d+(?:\.\d+)?)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0}


@dataclass(frozen=True)
class Slo:
    """`share` of all requests, in 0…1, have what they asked for within `seconds` of their due time."""

    share: float
    seconds: float

    def __str__(self) -> str:
        return f"p{100 * self.share:g}<{self.seconds:g}s"

    def is_good(self, latency: float | None) -> bool:
        """Return whether a request was served in time; `None` is one that failed."""
        return latency is not None and latency <= self.seconds

    def is_kept(self, latencies: Sequence[float | None]) -> bool:
        """Return whether enough of all requests were; those that failed were not."""
        good = sum(self.is_good(latency) for latency in latencies)
        return bool(latencies) and good >= self.share * len(latencies)


def parse_slo(text: str) -> Slo:
    """Return the objective that `p95<2s`, `p99<800ms` or aiperf's `request_latency:2000` (ms) writes.

    Of aiperf's, which names no share, it is the median: what counts there is each request by itself.
    Raise `InvalidParams`.
    """
    if found := _OF_AIPERF.fullmatch(text.strip()):
        return Slo(0.5, float(found["number"]) / 1000)
    found = _WRITTEN.fullmatch(text.strip())
    if not found or not (0 < float(found["percent"]) < 100) or float(found["number"]) == 0:
        raise InvalidParams("slo", text, "is not an objective; write p95<2s or p99<800ms")
    return Slo(float(found["percent"]) / 100, float(found["number"]) * _SECONDS[found["unit"]])
