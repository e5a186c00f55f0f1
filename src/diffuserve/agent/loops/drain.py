"""Ends the worker gracefully once a drain is requested."""

import asyncio
import logging
from collections.abc import Callable

from diffuserve.agent.jobs.engine_jobs import EngineJobs
from diffuserve.agent.registration.membership import Membership
from diffuserve.agent.reporting.result_reporter import ResultReporter
from diffuserve.agent.state.agent_state import AgentState, DrainOrder
from diffuserve.client.leases import LeaseClient
from diffuserve.domain.errors import DiffuserveError

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05
_ANNOUNCE_SECONDS = 3.0
_RELEASE_PATIENCE_SECONDS = 5.0
_PREEMPT_SECONDS = 10.0  # for a step, and for the checkpoint's file
_REPORT_SECONDS = 10.0


class DrainLoop:
    """Waits for a drain, gives held jobs `drain_seconds` to finish, releases the rest, and ends.

    Long jobs are released with a checkpoint. When the machine is taken away, the times for preempting and
    reporting stay the same, and jobs must finish in the time left before them.
    """

    def __init__(
        self,
        client: LeaseClient,
        membership: Membership,
        state: AgentState,
        jobs: EngineJobs,
        reporter: ResultReporter,
        drain_seconds: float,
    ) -> None:
        self._client, self._membership = client, membership
        self._state, self._jobs, self._reporter = state, jobs, reporter
        self._drain_seconds = drain_seconds
        self._order: DrainOrder | None = None
        self._end = 0.0

    async def run(self) -> None:
        await self._state.drain_requested.wait()
        self._ends_at()  # starts the time
        start = asyncio.get_running_loop().time()
        self._state.has_capacity.set()  # wakes the claim loop, which ends
        await self._announce()
        await self._wait(lambda: not self._state.held, _PREEMPT_SECONDS + _REPORT_SECONDS)
        await self._wait(lambda: not self._jobs.preempt_all(), _REPORT_SECONDS)
        self._jobs.release_unfinished(_RELEASE_PATIENCE_SECONDS)
        reported = asyncio.create_task(self._reporter.all_reported())
        await self._wait(reported.done, 0.0)
        held, seconds = len(self._state.held), asyncio.get_running_loop().time() - start
        log.info("drained in %.1f s; %d jobs are left to their leases", seconds, held)
        self._state.end(self._order.exit_code if self._order else 0)

    async def _wait(self, is_over: Callable[[], bool], seconds_after: float) -> None:
        """Wait until `is_over()`, or until only `seconds_after` of the drain are left."""
        while not is_over() and asyncio.get_running_loop().time() < self._ends_at() - seconds_after:
            await asyncio.sleep(_LOOK_SECONDS)

    def _ends_at(self) -> float:
        """Return the time by which all jobs are released; it changes when a new order arrives."""
        order = self._state.drain_order
        assert order is not None
        if order is not self._order:
            log.info("draining: %s; %d jobs are held", order.reason, len(self._state.held))
            own_seconds = self._drain_seconds + _PREEMPT_SECONDS + _REPORT_SECONDS
            seconds = own_seconds if order.seconds is None else order.seconds
            end = asyncio.get_running_loop().time() + seconds
            self._end = end if self._order is None else min(self._end, end)
            self._order = order
        return self._end

    async def _announce(self) -> None:
        if not self._membership.is_registered:
            return
        try:
            async with asyncio.timeout(_ANNOUNCE_SECONDS):
                await self._client.drain(await self._membership.worker_id())
        except (TimeoutError, DiffuserveError) as error:
            log.warning("the drain could not be announced to the control plane: %r", error)
