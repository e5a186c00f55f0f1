"""Allows claims while the worker has room for more jobs."""

import logging
from collections.abc import Callable

from diffuserve.agent.config import WorkerConfig
from diffuserve.agent.engines.served_model import ServedModel
from diffuserve.agent.engines.served_models import ServedModels
from diffuserve.agent.state.agent_state import AgentState
from diffuserve.agent.state.capacity import (
    MIN_FREE_BYTES,
    NO_CAPACITY,
    NO_ROOM,
    Capacity,
    ClaimScope,
    EngineJob,
    free_capacity,
    is_disk_short,
)
from diffuserve.agent.state.held_job import HeldJob
from diffuserve.telemetry.log_fields import once_a_minute
from diffuserve.telemetry.memory import Memory, ReadMemory

log = logging.getLogger(__name__)


class ClaimGate:
    """Sets and clears `state.has_capacity`; `update` must follow whatever may change the capacity."""

    def __init__(
        self,
        config: WorkerConfig,
        state: AgentState,
        models: ServedModels,
        read_memory: ReadMemory,
        is_storage_away: Callable[[], bool],
    ) -> None:
        self._is_storage_away = is_storage_away
        self._config, self._state, self._models = config, state, models
        self._room = NO_ROOM
        self._read_memory = read_memory

    def update(self) -> None:
        self._models.review()
        room = self.room()
        if room.models and room.wanted != self._room.wanted:
            self._room = room
            self._state.cut_claim()  # it is not for those that may be claimed now
        if room.capacity.num_jobs > 0:
            self._state.has_capacity.set()
        elif not self._state.is_draining:  # a drain leaves it set, so that the claim loop wakes and ends
            self._state.has_capacity.clear()

    def forget(self, job: HeldJob) -> None:
        """Remove `job`, unless it was leased again meanwhile."""
        if self._state.held.get(job.lease.job_id) is job:
            del self._state.held[job.lease.job_id]
        self.update()

    def room(self) -> ClaimScope:
        """Return the capacity for claims: none while no engine is ready, or memory or disk is short.

        Models without capacity are left out. The minimum of the others applies to all, since any of them may
        get the claimed job.
        """
        if self._is_memory_short() or _is_disk_short():
            return NO_ROOM
        free = {model: self._capacity_of(model) for model in self._models.claimable()}
        models = [model for model, capacity in free.items() if capacity.num_jobs > 0]
        if not models:
            return NO_ROOM
        least = Capacity(
            min(free[model].num_jobs for model in models), min(free[model].num_tokens for model in models)
        )
        resident = tuple(model.name for model in models if model.is_ready)
        places = ((model.name, free[model].ahead_of) for model in models)
        ahead_of = {name: place for name, place in places if place is not None}
        return ClaimScope(least, tuple(model.name for model in models), resident, ahead_of)

    def _capacity_of(self, model: ServedModel) -> Capacity:
        """Return what may be claimed of a model; one that was never loaded is taken for like the smallest."""
        budgets = [known.token_budget for known in self._models.all if known.token_budget is not None]
        budget = min(budgets, default=None) if model.token_budget is None else model.token_budget
        if budget is None:
            return NO_CAPACITY
        leases = [job.lease for job in self._state.held_for(model.name) if job.is_in_engine]
        in_engine = [EngineJob(lease.band, lease.step_tokens) for lease in leases]
        num_finishing = len(self._state.held) - len(self._state.jobs_in_engine)
        return free_capacity(
            self._config.total_jobs, budget, in_engine, num_finishing, self._is_storage_away()
        )

    def memory(self) -> Memory:
        """Return the device's memory if it has its own, else this machine's."""
        latest = self._models.latest
        heartbeat = None if latest is None else latest.last_heartbeat
        if heartbeat is not None and heartbeat.memory_limit_bytes:
            return Memory(heartbeat.memory_bytes, heartbeat.memory_limit_bytes)
        return self._read_memory(self._models.pids)

    def _is_memory_short(self) -> bool:
        return self.memory().is_short(self._config.memory_fraction)


def _is_disk_short() -> bool:
    is_short = is_disk_short()
    if is_short:
        message = "no job is claimed: the folder for temporary files has less than %d MiB free"
        log.error(message, MIN_FREE_BYTES >> 20, extra=once_a_minute())
    return is_short
