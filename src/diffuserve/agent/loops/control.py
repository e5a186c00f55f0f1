"""Follows the control commands that cannot wait for a heartbeat."""

import asyncio

from diffuserve.agent.jobs.engine_jobs import EngineJobs
from diffuserve.agent.registration.membership import Membership
from diffuserve.agent.state.agent_state import AgentState, DrainOrder
from diffuserve.client.leases import LeaseClient
from diffuserve.domain.errors import WorkerNotFound
from diffuserve.domain.workers.worker import ControlCommands

_LONG_POLL_SECONDS = 25.0
_REPEAT_SECONDS = 0.5
_FORGOTTEN_SECONDS = 1.0


class ControlLoop:
    """Long-polls for control commands that were not received yet."""

    def __init__(
        self, client: LeaseClient, membership: Membership, state: AgentState, jobs: EngineJobs
    ) -> None:
        self._client, self._membership, self._state, self._jobs = client, membership, state, jobs

    async def run(self) -> None:
        while True:
            worker_id = await self._membership.worker_id()
            try:
                commands = await self._client.control(
                    worker_id, _LONG_POLL_SECONDS, self._state.received_commands
                )
            except WorkerNotFound:
                await asyncio.sleep(_FORGOTTEN_SECONDS)  # the heartbeat loop registers again
                continue
            if commands.lost:
                # The response to the next heartbeat says which leases are lost, by their tokens.
                self._state.heartbeat_due.set()
            apply_commands(commands, self._state, self._jobs)
            attempts = {job.attempt for job in self._state.held.values()}
            if not (self._state.held.keys() >= set(commands.cancel) and attempts >= set(commands.preempt)):
                # The control plane repeats commands on jobs that are not held until their leases expire.
                await asyncio.sleep(_REPEAT_SECONDS)


def apply_commands(commands: ControlCommands, state: AgentState, jobs: EngineJobs) -> None:
    """Cancel and preempt jobs, and begin to drain; a response to a heartbeat alone drops lost leases."""
    for job_id in commands.cancel:
        jobs.cancel(job_id)
    for attempt in commands.preempt:
        jobs.preempt(attempt)
    if commands.drain:
        state.drain(DrainOrder(reason="by an operator"))
