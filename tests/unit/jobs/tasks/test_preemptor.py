"""The preemptor looks when it may have to act, and no more often."""

import asyncio
from typing import cast

from diffuserve.events.base import QUEUE
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.tasks.housekeeping import Housekeeping
from diffuserve.jobs.tasks.preemptor import Preemptor
from support.virtual_time import in_virtual_time


class NothingUrgent:
    """Housekeeping of a queue in which no interactive job waits; it counts the looks at it."""

    def __init__(self) -> None:
        self.num_looks = 0

    async def make_room(self) -> None:
        self.num_looks += 1


@in_virtual_time
async def test_only_urgent_jobs_are_looked_for_at_once() -> None:
    bus, queue = MemoryEventBus(), NothingUrgent()
    running = asyncio.create_task(Preemptor(cast(Housekeeping, queue), bus).run())
    await asyncio.sleep(0.01)
    for urgent, num_looks in ((False, 1), (True, 2), (False, 2), (True, 3)):
        bus.publish(QUEUE, {"type": "ready", "urgent": urgent})
        await asyncio.sleep(0.01)
        assert queue.num_looks == num_looks
    await asyncio.sleep(1.0)
    assert queue.num_looks == 4, "a message may have been lost"
    running.cancel()
