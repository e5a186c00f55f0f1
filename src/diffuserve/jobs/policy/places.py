"""Places of ready jobs within their lane: by submission, or before all of these by what a deadline leaves."""

_PLACES = 2**31  # that a tenant's jobs can have, and seconds that deadlines are told apart by
_EPOCH = 1_700_000_000  # of these seconds


def urgent_place(seq: int, latest_start: float) -> int:
    """Return the place of a job that is close to its deadline, below every place that a job has by itself.

    It is unique, since no two jobs of a lane share a `seq`.
    """
    second = min(max(int(latest_start) - _EPOCH, 0), _PLACES - 1)
    return second * _PLACES + seq - _PLACES * _PLACES


def latest_start_at(place: int) -> float | None:
    """Return the latest start, in whole seconds, of a job at such a place; `None` at any other."""
    return None if place >= 0 else float((place + _PLACES * _PLACES) // _PLACES + _EPOCH)
