"""Ends the worker gracefully once a drain is requested."""

import asyncio
import logging

from diffuserve.client.leases import LeaseClient
from diffuserve.domain.errors import DiffuserveError
from diffuserve.worker.agent_state import AgentState
from diffuserve.worker.engine_jobs import EngineJobs
from diffuserve.worker.membership import Membership
from diffuserve.worker.result_reporter import ResultReporter

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05
_RELEASE_PATIENCE_SECONDS = 5.0
_PUT_DOWN_SECONDS = 10.0  # a step, and the file of what it led to
_REPORT_SECONDS = 10.0


class DrainLoop:
    """Waits for a drain, gives held jobs `drain_seconds` to finish, hands back the rest, and ends.

    Long ones are handed back with what is done of them.
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

    async def run(self) -> None:
        await self._state.drain_requested.wait()
        log.info("draining: %d jobs are held", len(self._state.held))
        self._state.has_capacity.set()  # wakes the claim loop, which ends
        await self._announce()
        deadline = asyncio.get_running_loop().time() + self._drain_seconds
        while self._state.held and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(_LOOK_SECONDS)
        deadline = asyncio.get_running_loop().time() + _PUT_DOWN_SECONDS
        while self._jobs.put_down() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(_LOOK_SECONDS)
        self._jobs.release_unfinished(_RELEASE_PATIENCE_SECONDS)
        await asyncio.wait({asyncio.create_task(self._reporter.all_reported())}, timeout=_REPORT_SECONDS)
        self._state.end(0)

    async def _announce(self) -> None:
        if not self._membership.is_registered:
            return
        try:
            await self._client.drain(await self._membership.worker_id())
        except DiffuserveError as error:
            log.warning("the drain could not be announced to the control plane: %s", error)
