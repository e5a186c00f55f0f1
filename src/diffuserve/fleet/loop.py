"""The loop of a fleet: it asks the control plane for a number, and the cluster manager for the difference.

It holds nothing that a successor needs: without it workers go on, and only none is started.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from diffuserve.domain.errors import (
    Forbidden,
    InvalidParams,
    ServerRefused,
    ServerUnavailable,
    Unauthorized,
)
from diffuserve.domain.resources.scale import ScaleResource
from diffuserve.fleet.launcher import FleetPlacement, FleetWorker, Launcher
from diffuserve.fleet.plan import FleetBounds, Start, plan
from diffuserve.telemetry.outage_log import OutageLog

log = logging.getLogger(__name__)

AskSize = Callable[[], Awaitable[ScaleResource | None]]
_LOOK_SECONDS = 1.0
_TELL_SECONDS = 10.0


class FleetLoop:
    """Keeps as many workers as `ask_size` says, within `bounds`; it is asked every `look_seconds`."""

    def __init__(
        self, launcher: Launcher, ask_size: AskSize, bounds: FleetBounds, look_seconds: float = 5.0
    ) -> None:
        self._launcher, self._ask_size, self._bounds = launcher, ask_size, bounds
        self._look_seconds = look_seconds
        self._outages = OutageLog("the fleet's control plane or cluster manager")
        self._has_worked = False
        self._told: tuple[int | str, ...] = ()
        self._failures: set[str] = set()
        self._earlier: set[str] | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Keep the workers until `stop` is set. Raise `InvalidParams` if none can start at all."""
        while not stop.is_set():
            try:
                await self.look()
            except (ServerUnavailable, ServerRefused, Unauthorized, Forbidden) as error:
                self._outages.failed(str(error))  # it was right at the door, and may be so again
            else:
                self._outages.succeeded()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._look_seconds):
                    await stop.wait()

    async def look(self) -> None:
        """Start what is missing now, or take back what is too much. Raise as `run` does."""
        size = await self._ask_size()
        workers = self._without_earlier(self._launcher.workers())
        self._has_worked = self._has_worked or (size is not None and size.num_live > 0)
        self._note_failures(workers)
        want = self._bounds.of(0 if size is None else size.workers)
        waiting = _of(workers, FleetPlacement.WAITING)
        occupied = len(workers) - len(waiting) - len(_of(workers, FleetPlacement.ENDING))
        self._tell(want, occupied, len(waiting), _reasons(waiting))
        order = plan(want, occupied, [worker.name for worker in waiting])
        if isinstance(order, Start):
            self._launcher.start(order.count)
        elif order.names:
            self._launcher.withdraw(order.names)

    def _without_earlier(self, workers: Sequence[FleetWorker]) -> Sequence[FleetWorker]:
        """Leave out those that had failed before this loop began: what was wrong may be corrected now."""
        if self._earlier is None:
            self._earlier = {worker.name for worker in _of(workers, FleetPlacement.FAILED)}
        return [worker for worker in workers if worker.name not in self._earlier]

    def _note_failures(self, workers: Sequence[FleetWorker]) -> None:
        """Log each failure once. Raise `InvalidParams` for workers of which none has ever worked."""
        failed = _of(workers, FleetPlacement.FAILED)
        for worker in failed:
            if worker.name not in self._failures:
                log.warning("%s failed: %s", worker.name, worker.detail)
        self._failures = {worker.name for worker in failed}
        hopeless = [worker for worker in failed if worker.cannot_start]
        if hopeless and not self._has_worked and not _of(workers, FleetPlacement.PLACED):
            self._launcher.kill()  # nothing that could hold a job
            raise InvalidParams("fleet", hopeless[0].name, f"cannot start: {hopeless[0].detail}")

    def _tell(self, *told: int | str) -> None:
        if told != self._told:
            log.info("workers wanted: %d, placed: %d, waiting for room: %d%s", *told)
            self._told = told


async def drained(launcher: Launcher, seconds: float) -> int:
    """Have all workers leave; end those that are left after `seconds`, and return how many these were.

    They are told more than once, but rarely: one that was being placed has not heard it, and one that has
    drained already would die of it. Raise `ServerUnavailable` for a cluster manager that is away at the end.
    """
    clock = asyncio.get_running_loop().time
    end, tell_at = clock() + seconds, clock()
    while clock() < end:
        with suppress(ServerUnavailable):
            if clock() >= tell_at:
                launcher.drain()
                tell_at = clock() + _TELL_SECONDS
            if not _left(launcher):
                break
        await asyncio.sleep(_LOOK_SECONDS)
    left = _left(launcher)
    launcher.kill()
    return len(left)


def _left(launcher: Launcher) -> Sequence[FleetWorker]:
    return [each for each in launcher.workers() if each.placement is not FleetPlacement.FAILED]


def _reasons(waiting: Sequence[FleetWorker]) -> str:
    """Return why workers wait, such as for a limit that they never pass, as the end of a line."""
    reasons = sorted({worker.detail for worker in waiting if worker.detail})
    return f" ({'; '.join(reasons)})" if reasons else ""


def _of(workers: Sequence[FleetWorker], placement: FleetPlacement) -> list[FleetWorker]:
    return [worker for worker in workers if worker.placement is placement]
