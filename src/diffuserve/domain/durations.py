"""Durations counted by size, from which percentiles are read: a count needs no room for each job."""

import math
from collections.abc import Mapping

_SHORTEST_SECONDS = 0.001
_STEPS_PER_DOUBLING = 4  # a bucket's middle is within a tenth of all that is in it
_LAST_BUCKET = 128  # about 50 days


def bucket_of(seconds: float) -> int:
    """Return the number of the bucket that counts a duration; longer ones have greater numbers."""
    if seconds <= _SHORTEST_SECONDS:
        return 0
    steps = math.ceil(math.log2(seconds / _SHORTEST_SECONDS) * _STEPS_PER_DOUBLING)
    return min(steps, _LAST_BUCKET)


def percentile(counts: Mapping[int, int], share: float) -> float | None:
    """Return the duration, in seconds, that `share` of all counted ones do not exceed; `None` without any.

    It is the middle of its bucket.
    """
    remaining = share * sum(counts.values())
    for bucket in sorted(counts):
        remaining -= counts[bucket]
        if remaining <= 0:
            return _middle_of(bucket)
    return None


def _middle_of(bucket: int) -> float:
    """Return the geometric mean of a bucket's bounds, rounded to three digits."""
    seconds = _SHORTEST_SECONDS * 2.0 ** ((bucket - 0.5) / _STEPS_PER_DOUBLING)
    return float(f"{seconds:.3g}")
