"""Turns: what many tenants need at once is given to them by what each has used of it."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

_Queue = deque[asyncio.Future[None]]


class FairSlots:
    """A number of slots. While all are taken, the next one goes to the tenant that has held them the least.

    As with jobs (start-time fair queueing), a tenant's virtual time advances by the seconds of its turns, and
    one that was idle resumes where the others are. So a tenant waits for the turns under way and those of
    tenants that have used as little, however many calls the others have waiting and however long these take.
    A tenant holds `max_each` slots at a time, if that is given.
    """

    def __init__(
        self, num_slots: int, max_each: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` gives seconds, in tests their own."""
        self._num_free = num_slots
        self._max_each = num_slots if max_each is None else max_each
        self._clock = clock
        self._waiting: dict[str, _Queue] = {}  # tenants in the order in which they began to wait
        self._held: Counter[str] = Counter()
        self._used: dict[str, float] = {}  # virtual times of tenants that hold or wait, or were ahead
        self._floor = 0.0  # the virtual time of the tenant that was served last

    @asynccontextmanager
    async def turn(self, tenant_id: str) -> AsyncIterator[None]:
        """Hold a slot within the block."""
        await self._take(tenant_id)
        began = self._clock()
        try:
            yield
        finally:
            self._used[tenant_id] += self._clock() - began
            self._give_back(tenant_id)

    async def _take(self, tenant_id: str) -> None:
        if self._num_free and self._held[tenant_id] < self._max_each and not self._next_tenant():
            self._grant(tenant_id)
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant_id, deque()).append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():  # the slot came at the same moment
                self._give_back(tenant_id)
            raise

    def _grant(self, tenant_id: str) -> None:
        self._num_free -= 1
        self._held[tenant_id] += 1
        self._floor = self._used[tenant_id] = self._virtual_time(tenant_id)

    def _give_back(self, tenant_id: str) -> None:
        self._num_free += 1
        self._held[tenant_id] -= 1
        while self._num_free and (chosen := self._next_tenant()) is not None:
            granted = self._pop(chosen)
            if not granted.done():  # else its caller was canceled
                self._grant(chosen)
                granted.set_result(None)
        self._forget()

    def _next_tenant(self) -> str | None:
        """Return the tenant whose turn it is; of equal ones one that holds fewer slots, then the first."""
        may = [tenant_id for tenant_id in self._waiting if self._held[tenant_id] < self._max_each]
        return min(may, key=lambda each: (self._virtual_time(each), self._held[each]), default=None)

    def _pop(self, tenant_id: str) -> asyncio.Future[None]:
        """Take the tenant's first call, and put the tenant behind the others."""
        queue = self._waiting.pop(tenant_id)
        granted = queue.popleft()
        if queue:
            self._waiting[tenant_id] = queue
        return granted

    def _virtual_time(self, tenant_id: str) -> float:
        return max(self._used.get(tenant_id, 0.0), self._floor)

    def _forget(self) -> None:
        """Forget idle tenants that are not ahead of the others, and all while nobody needs anything."""
        self._held = +self._held
        if not self._held and not self._waiting:
            self._used, self._floor = {}, 0.0
        busy = self._held.keys() | self._waiting.keys()
        self._used = {
            tenant_id: used
            for tenant_id, used in self._used.items()
            if tenant_id in busy or used > self._floor
        }
