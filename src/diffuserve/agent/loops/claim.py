"""Claims jobs whenever the worker has room for some."""

import asyncio
import secrets

from diffuserve.agent.jobs.claim_gate import ClaimGate
from diffuserve.agent.jobs.engine_jobs import EngineJobs
from diffuserve.agent.registration.membership import Membership
from diffuserve.agent.registration.reports import new_claim
from diffuserve.agent.state.agent_state import AgentState
from diffuserve.client.leases import LeaseClient
from diffuserve.domain.errors import WorkerNotFound
from diffuserve.domain.jobs.claim import Claim
from diffuserve.domain.workers.worker import Lease

_LONG_POLL_SECONDS = 25.0


class ClaimLoop:
    """Long-polls for jobs while there is capacity, until the worker drains."""

    def __init__(
        self,
        client: LeaseClient,
        membership: Membership,
        state: AgentState,
        gate: ClaimGate,
        jobs: EngineJobs,
    ) -> None:
        self._client, self._membership = client, membership
        self._state, self._gate, self._jobs = state, gate, jobs

    async def run(self) -> None:
        """Claim as much as there is room for; repeat a claim under its id until it has a response."""
        claim_id = _new_id()
        while not self._state.is_draining:
            worker_id = await self._membership.worker_id()
            await self._state.has_capacity.wait()
            room = self._gate.room()
            if room.capacity.num_jobs == 0:
                self._state.has_capacity.clear()
                continue
            try:
                leases = await self._send(worker_id, new_claim(room, claim_id))
            except WorkerNotFound:
                await self._membership.renew(worker_id)
                continue
            if leases is not None:
                claim_id = _new_id()
            for lease in leases or ():
                self._jobs.add(lease)

    async def _send(self, worker_id: str, claim: Claim) -> list[Lease] | None:
        """Return the leases that the control plane grants, or `None` if the claim was ended."""
        request = asyncio.create_task(self._client.claim(worker_id, claim, _LONG_POLL_SECONDS))
        self._state.claim = request
        try:
            await asyncio.wait({request})
        finally:
            request.cancel()
        return None if request.cancelled() else request.result()


def _new_id() -> str:
    return secrets.token_hex(8)
