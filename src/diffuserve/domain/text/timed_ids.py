"""Ids that sort by the time at which they were made."""

import secrets
import time

_PARTS_OF_A_MILLISECOND = 16**3


def timed_id(prefix: str, num_digits: int = 26) -> str:
    """Return `prefix`, 12 digits of the milliseconds since the epoch, 3 of their parts, and random ones.

    What a client sends in turn, also within one millisecond, is in that order.
    """
    time_digits = f"{time.time_ns() * _PARTS_OF_A_MILLISECOND // 1_000_000:015x}"
    num_random = num_digits - len(time_digits)
    return f"{prefix}{time_digits}{secrets.randbits(4 * num_random):0{num_random}x}"
