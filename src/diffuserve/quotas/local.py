"""Quotas of a single control plane, in memory."""

import time
from collections.abc import Callable

from cachetools import FIFOCache

from diffuserve.quotas.base import Allowance, Rate

_MAX_NAMES = 100_000


class LocalQuotas:
    """Stores for each name the time at which its debt is paid; the names granted longest ago are evicted."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds and never goes back."""
        self._clock = clock
        self._paid_at: FIFOCache[str, float] = FIFOCache(_MAX_NAMES)

    async def take(self, name: str, rate: Rate, count: int = 1) -> Allowance:
        """Grant a call and count it `count` times, or refuse it and count nothing."""
        now = self._clock()
        debt = max(0.0, self._paid_at.get(name, now) - now)
        if debt > rate.max_debt:
            return Allowance(rate, False, debt)
        debt += count * rate.interval
        if debt:  # else the name would only take the place of one that owes something
            self._paid_at[name] = now + debt
        return Allowance(rate, True, debt)
