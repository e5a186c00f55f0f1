"""The preemptor: the background task that preempts batch jobs for interactive ones that wait too long."""

import asyncio
import logging
from dataclasses import dataclass

from diffuserve.domain.errors import ServerUnavailable
from diffuserve.events.base import QUEUE, EventBus, Subscription
from diffuserve.jobs.tasks.housekeeping import Housekeeping
from diffuserve.telemetry.log_fields import once_a_minute

log = logging.getLogger(__name__)

_IDLE_SECONDS = 1.0  # between two checks without a hint, which the bus may have lost
_FAILED_SECONDS = 1.0


@dataclass
class Preemptor:
    """Runs beside the API of every control plane; any number of them may run at once."""

    housekeeping: Housekeeping
    bus: EventBus

    async def run(self) -> None:
        """Check whenever an urgent job becomes ready, and while one waits, until canceled."""
        with self.bus.subscribe(QUEUE) as hints:
            while True:
                seconds = await self._look()
                if seconds is not None:
                    await asyncio.sleep(seconds)
                else:
                    await _next_look(hints)

    async def _look(self) -> float | None:
        """Return the seconds until the next check, or `None` if only a new job can make one necessary."""
        try:
            return await self.housekeeping.make_room()
        except ServerUnavailable as error:
            log.warning("no room is made for urgent jobs: %s", error, extra=once_a_minute())
        except Exception:
            log.exception("a look at urgent jobs failed; the next one is in %.0f s", _FAILED_SECONDS)
        return _FAILED_SECONDS


async def _next_look(hints: Subscription) -> None:
    """Wait for a hint that an urgent job became ready, or for a while."""
    clock = asyncio.get_running_loop().time
    end = clock() + _IDLE_SECONDS
    while (left := end - clock()) > 0:
        hint = await hints.get(left)
        if hint is None or hint.get("urgent"):
            return
