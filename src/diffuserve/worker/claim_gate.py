"""Opens the way for claims while the worker has room for more jobs."""

from diffuserve.worker.agent_state import AgentState
from diffuserve.worker.capacity import NO_CAPACITY, Capacity, Memory, ReadMemory, free_capacity
from diffuserve.worker.config import WorkerConfig
from diffuserve.worker.held_job import HeldJob
from diffuserve.worker.supervisor import EngineSupervisor


class ClaimGate:
    """Sets and clears `state.has_capacity`; `update` must follow whatever may change the capacity."""

    def __init__(
        self, config: WorkerConfig, state: AgentState, engine: EngineSupervisor, read_memory: ReadMemory
    ) -> None:
        self._config, self._state, self._engine = config, state, engine
        self._read_memory = read_memory

    def update(self) -> None:
        if self.capacity().num_jobs > 0:
            self._state.has_capacity.set()
        elif not self._state.is_draining:  # a drain leaves it open: the claim loop must pass, and end
            self._state.has_capacity.clear()

    def forget(self, job: HeldJob) -> None:
        """Remove `job`, unless it was leased again meanwhile."""
        if self._state.held.get(job.lease.job_id) is job:
            del self._state.held[job.lease.job_id]
        self.update()

    def capacity(self) -> Capacity:
        """Return what may be claimed now: nothing while the engine is not ready or memory is short."""
        budget = self._engine.token_budget
        if budget is None or self._engine.is_stalled or self._is_memory_short():
            return NO_CAPACITY
        tokens = [job.lease.step_tokens for job in self._state.jobs_in_engine]
        return free_capacity(self._config.most_jobs, budget, tokens, len(self._state.held) - len(tokens))

    def memory(self) -> Memory:
        """Return the device's memory if it has its own, else this machine's."""
        heartbeat, link = self._engine.last_heartbeat, self._engine.link
        if heartbeat is not None and heartbeat.memory_limit_bytes:
            return Memory(heartbeat.memory_bytes, heartbeat.memory_limit_bytes)
        return self._read_memory(link.pid if link is not None else None)

    def _is_memory_short(self) -> bool:
        return self.memory().is_short(self._config.memory_fraction)
