"""Ends a worker that is not needed for now."""

import asyncio
import logging

from diffuserve.agent.registration.membership import Membership
from diffuserve.agent.registration.worker_status import WorkerStatus
from diffuserve.agent.state.agent_state import AgentState, DrainOrder
from diffuserve.client.leases import LeaseClient
from diffuserve.domain.errors import DiffuserveError
from diffuserve.domain.workers.worker import WorkerState
from diffuserve.telemetry.log_fields import once_a_minute

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_ASK_AGAIN_SECONDS = 15.0


class IdleLoop:
    """Asks the control plane whether the worker may leave, once it was ready without a job for some time.

    It may while there are enough others, and then drains. Jobs claimed before the answer are finished.
    Without an answer the worker stays.
    """

    def __init__(
        self,
        client: LeaseClient,
        membership: Membership,
        state: AgentState,
        status: WorkerStatus,
        idle_seconds: float | None,
        least: int = 0,
    ) -> None:
        self._client, self._membership = client, membership
        self._state, self._status = state, status
        self._idle_seconds, self._least = idle_seconds, least

    async def run(self) -> None:
        """Watch for work until the worker may leave; return at once if it must stay."""
        if self._idle_seconds is None:
            return
        num_taken, ask_at = -1, 0.0
        while not self._state.is_draining:
            now = asyncio.get_running_loop().time()
            if self._state.num_taken != num_taken or self._status.worker_state is not WorkerState.READY:
                num_taken, ask_at = self._state.num_taken, now + self._idle_seconds
            elif now >= ask_at:
                await self._ask(self._idle_seconds)
                ask_at = now + _ASK_AGAIN_SECONDS
            await asyncio.sleep(_LOOK_SECONDS)

    async def _ask(self, seconds: float) -> None:
        try:
            leaves = await self._client.leave(await self._membership.worker_id(), self._least)
        except DiffuserveError as error:
            log.warning("idle, and not told whether to leave: %s", error, extra=once_a_minute())
        else:
            if leaves:
                self._state.drain(DrainOrder(reason=f"idle for {seconds:g} s, and not needed"))
