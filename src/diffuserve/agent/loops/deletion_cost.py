"""Tells Kubernetes which worker of a Deployment to stop last."""

import asyncio
import logging
import math
from collections.abc import Iterable

from diffuserve.agent.pod import Pod
from diffuserve.agent.state.agent_state import AgentState
from diffuserve.agent.state.held_job import HeldJob
from diffuserve.domain.errors import ServerUnavailable
from diffuserve.telemetry.log_fields import once_a_minute

log = logging.getLogger(__name__)

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_LOOK_SECONDS = 15.0  # the period at which Kubernetes scales
_BAND_SECONDS = 100
_MAX_SECONDS = 900


class DeletionCostLoop:
    """Annotates the worker's pod with its deletion cost whenever that has changed much."""

    def __init__(self, pod: Pod | None, state: AgentState) -> None:
        self._pod, self._state = pod, state

    async def run(self) -> None:
        """Watch the held jobs until the agent ends; return at once without a pod."""
        if self._pod is None:
            return
        told = -1
        while True:
            cost = deletion_cost(self._state.held.values())
            if cost != told and await self._tell(self._pod, cost):
                told = cost
            await asyncio.sleep(_LOOK_SECONDS)

    async def _tell(self, pod: Pod, cost: int) -> bool:
        try:
            await pod.annotate(DELETION_COST, str(cost))
        except ServerUnavailable as error:
            log.warning(
                "Kubernetes is not told what this worker's end costs: %s", error, extra=once_a_minute()
            )
            return False
        return True


def deletion_cost(held: Iterable[HeldJob]) -> int:
    """Return 0 for an idle worker, else 100 and the seconds until its jobs are done, in bands of 100."""
    left = [job.lease.cost_seconds * (1 - job.step / job.total if job.total else 1.0) for job in held]
    if not left:
        return 0
    return 100 + min(math.ceil(max(left) / _BAND_SECONDS) * _BAND_SECONDS, _MAX_SECONDS)
