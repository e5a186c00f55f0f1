"""Quotas of a single control plane."""

import time
from collections import OrderedDict
from collections.abc import Callable

from diffuserve.quotas.base import Allowance, Rate

_MAX_NAMES = 100_000


class LocalQuotas:
    """Remembers when the debt of each name is paid off; who has been quiet for longest goes first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._paid_at: OrderedDict[str, float] = OrderedDict()

    async def take(self, name: str, rate: Rate) -> Allowance:
        now = self._clock()
        debt = max(0.0, self._paid_at.get(name, now) - now)
        if debt > rate.granted_up_to:
            return Allowance(rate, False, debt)
        debt += rate.interval
        self._paid_at[name] = now + debt
        self._paid_at.move_to_end(name)
        if len(self._paid_at) > _MAX_NAMES:
            self._paid_at.popitem(last=False)
        return Allowance(rate, True, debt)
