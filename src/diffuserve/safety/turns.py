"""Turns: what many tenants need at once is given to them one after another."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_Queue = deque[asyncio.Future[None]]


class TenantTurns:
    """A number of slots. While all are taken, the tenants that wait get the next ones in turn.

    So a tenant waits for the other tenants' single calls, however many calls each of them has waiting.
    """

    def __init__(self, num_slots: int) -> None:
        self._num_free = num_slots
        self._waiting: OrderedDict[str, _Queue] = OrderedDict()

    @asynccontextmanager
    async def turn(self, tenant_id: str) -> AsyncIterator[None]:
        """Hold a slot within the block."""
        await self._take(tenant_id)
        try:
            yield
        finally:
            self._give_back()

    async def _take(self, tenant_id: str) -> None:
        if self._num_free and not self._waiting:
            self._num_free -= 1
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant_id, deque()).append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():  # the slot came at the same moment
                self._give_back()
            raise

    def _give_back(self) -> None:
        self._num_free += 1
        while self._waiting and self._num_free:
            granted = self._next()
            if not granted.done():  # else its caller was canceled
                granted.set_result(None)
                self._num_free -= 1

    def _next(self) -> asyncio.Future[None]:
        """Take the first call of the tenant whose turn it is, and put the tenant behind the others."""
        tenant_id, queue = self._waiting.popitem(last=False)
        granted = queue.popleft()
        if queue:
            self._waiting[tenant_id] = queue
        return granted
