"""Reports the worker to the control plane, which renews its leases."""

import asyncio
import contextlib
import logging

from diffuserve.agent.jobs.engine_jobs import EngineJobs
from diffuserve.agent.loops.control import apply_commands
from diffuserve.agent.registration.membership import Membership
from diffuserve.agent.registration.worker_status import WorkerStatus
from diffuserve.agent.state.agent_state import AgentState
from diffuserve.client.leases import LeaseClient
from diffuserve.domain.errors import Forbidden, ServerUnavailable, Unauthorized, WorkerNotFound

log = logging.getLogger(__name__)


class HeartbeatLoop:
    """Sends heartbeats at the control plane's interval, and handles its responses.

    A heartbeat without a response within a fifth of a lease, as from a frozen control plane, is abandoned:
    behind a load balancer a later one reaches another control plane in time. It still counts if it arrives.
    """

    def __init__(
        self,
        client: LeaseClient,
        membership: Membership,
        state: AgentState,
        status: WorkerStatus,
        jobs: EngineJobs,
    ) -> None:
        self._client, self._membership = client, membership
        self._state, self._status, self._jobs = state, status, jobs

    async def run(self) -> None:
        while True:
            worker_id = await self._membership.worker_id()
            interval = self._membership.heartbeat_seconds
            start = asyncio.get_running_loop().time()
            self._state.heartbeat_due.clear()  # later changes may be missing in this heartbeat
            heartbeat = self._status.heartbeat()
            try:
                async with asyncio.timeout(self._membership.lease_seconds / 5):
                    commands = await self._client.heartbeat(worker_id, heartbeat, interval)
                self._membership.key_accepted()
                self._jobs.drop_lost(commands.lost, heartbeat)
                apply_commands(commands, self._state, self._jobs)
                self._state.take_order(commands.order)
            except WorkerNotFound:
                await self._membership.renew(worker_id)
            except (Unauthorized, Forbidden) as error:
                self._membership.key_refused(error)
            except TimeoutError:
                continue
            except ServerUnavailable as error:
                log.debug("no heartbeat: %s", error)  # logged as an outage
            await self._rest(max(interval - (asyncio.get_running_loop().time() - start), 0.0))

    async def _rest(self, seconds: float) -> None:
        """Wait until the next heartbeat is due, or a change cannot wait for it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._state.heartbeat_due.wait()
