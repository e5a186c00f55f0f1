"""The worker's own view of its state, and the heartbeats that report it."""

from dataclasses import replace

from diffuserve.domain.worker import Heartbeat, LoadProgress, WorkerState
from diffuserve.worker.agent_state import AgentState
from diffuserve.worker.claim_gate import ClaimGate
from diffuserve.worker.membership import Membership
from diffuserve.worker.messages import EngineHeartbeat
from diffuserve.worker.metrics import WorkerMetrics
from diffuserve.worker.reports import worker_report
from diffuserve.worker.supervisor import EngineSupervisor

_USUAL_STATES = {WorkerState.READY, WorkerState.OCCUPIED}


class WorkerStatus:
    """Derives the worker's state from its engine and its jobs."""

    def __init__(
        self,
        state: AgentState,
        engine: EngineSupervisor,
        membership: Membership,
        gate: ClaimGate,
        metrics: WorkerMetrics,
    ) -> None:
        self._state, self._engine, self._membership = state, engine, membership
        self._gate, self._metrics = gate, metrics
        self._reported_loading: LoadProgress | None = None
        self._last_reported: EngineHeartbeat | None = None

    @property
    def worker_state(self) -> WorkerState:
        if self._engine.is_stalled:
            return WorkerState.STALLED
        if self._state.is_draining:
            return WorkerState.DRAINING
        if not self._engine.is_ready:
            return WorkerState.INITIALIZING
        return WorkerState.OCCUPIED if self._state.held else WorkerState.READY

    def request_heartbeat_if_changed(self) -> None:
        """Have a change reported at once: progress of loading, or of the state but for ready and occupied."""
        current, reported = self.worker_state, self._state.reported_state
        has_changed = current is not reported and {current, reported} != _USUAL_STATES
        if has_changed or self._engine.loading != self._reported_loading:
            self._state.heartbeat_due.set()

    def heartbeat(self) -> Heartbeat:
        """Build a heartbeat, which counts as reported from here on.

        Leases of jobs inside the engine are named, and so renewed, only while the engine responds.
        """
        state, engine = self.worker_state, self._engine
        jobs = self._state.held.values()
        held = tuple(job.to_renew() for job in jobs if engine.is_ready or not job.is_in_engine)
        latest = engine.last_heartbeat
        fits = {self._membership.model: latest.fit} if latest is not None and latest.fit else {}
        self._state.reported_state = state
        self._metrics.set_state(state)
        report = worker_report(
            state,
            self._membership.registration,
            self._gate.memory(),
            latest,
            len(self._state.held),
            engine.image_filter,
        )
        self._reported_loading = engine.loading
        mean_batch = None if latest is None else latest.mean_batch_since(self._last_reported)
        self._last_reported = latest
        loaded = replace(
            report,
            num_gpus=engine.num_gpus,
            quantization=engine.quantization,
            residency=engine.residency,
            device_name=engine.device_name,
            loading=engine.loading,
            mean_batch=mean_batch,
            drain_reason=self._state.drain_order.reason if self._state.drain_order else "",
        )
        return Heartbeat(report=loaded, held=held, fits=fits)
