"""The worker's own view of its state, and the heartbeats that report it."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import zip_longest

from diffuserve.agent.engines.served_model import ServedModel
from diffuserve.agent.engines.served_models import ServedModels
from diffuserve.agent.jobs.claim_gate import ClaimGate
from diffuserve.agent.metrics import WorkerMetrics
from diffuserve.agent.registration.membership import Membership
from diffuserve.agent.registration.reports import worker_report
from diffuserve.agent.state.agent_state import AgentState
from diffuserve.agent.state.held_job import HeldJob
from diffuserve.agent.state.held_states import HeldState
from diffuserve.domain.models.cost import CostFit
from diffuserve.domain.workers.model_orders import OrdersReport
from diffuserve.domain.workers.peers import PeerReport
from diffuserve.domain.workers.worker import MAX_RESIDENT_ADAPTERS, Heartbeat, LoadProgress, WorkerState
from diffuserve.protocol.messages import EngineHeartbeat

_USUAL_STATES = {WorkerState.READY, WorkerState.OCCUPIED}


class WorkerStatus:
    """Derives the worker's state from its engines and its jobs."""

    def __init__(
        self,
        state: AgentState,
        models: ServedModels,
        membership: Membership,
        gate: ClaimGate,
        metrics: WorkerMetrics,
    ) -> None:
        self._state, self._models, self._membership = state, models, membership
        self._gate, self._metrics = gate, metrics
        self._reported_loading: LoadProgress | None = None
        self._last_reported: EngineHeartbeat | None = None
        self._reported_peers: set[tuple[str, bool]] = set()

    @property
    def worker_state(self) -> WorkerState:
        if self._models.is_stalled:
            return WorkerState.STALLED
        if self._state.is_draining:
            return WorkerState.DRAINING
        if not self._models.is_ready and not self._state.awaited_models:
            return WorkerState.INITIALIZING
        return WorkerState.OCCUPIED if self._state.held else WorkerState.READY

    def request_heartbeat_if_changed(self) -> None:
        """Report progress of loading, and changes of state other than between ready and occupied, at once."""
        current, reported = self.worker_state, self._state.reported_state
        has_changed = current is not reported and {current, reported} != _USUAL_STATES
        has_changed = has_changed or _parts(self._peers()) != self._reported_peers
        if has_changed or self._models.loading != self._reported_loading:
            self._state.heartbeat_due.set()

    def heartbeat(self) -> Heartbeat:
        """Build a heartbeat, which counts as reported from here on.

        Leases of jobs inside an engine are included, and so renewed, only while the engine responds.
        """
        state, models, engine = self.worker_state, self._models, self._models.latest
        held = tuple(job.to_renew() for job in self._state.held.values() if self._is_alive(job))
        latest = None if engine is None else engine.last_heartbeat
        self._state.reported_state = state
        self._metrics.set_state(state)
        report = worker_report(
            state,
            self._membership.registration,
            self._gate.memory(),
            latest,
            len(self._state.held),
            tuple(model.name for model in models.all if model.is_resident),
        )
        self._reported_loading, peers = models.loading, self._peers()
        self._reported_peers = _parts(peers)
        mean_batch = None if latest is None else latest.mean_batch_since(self._last_reported)
        self._last_reported = latest
        loaded = replace(
            report,
            num_gpus=0 if engine is None else engine.num_gpus,
            image_filter=None if engine is None else engine.image_filter,
            quantization=models.quantization,
            residency=None if engine is None else engine.residency,
            device_name="" if engine is None else engine.device_name,
            loading=models.loading,
            withdrawn_models=models.withdrawn,
            peers=peers,
            resident_adapters=_adapters(models.all),
            mean_batch=mean_batch,
            orders=self._orders(),
            drain_reason=self._state.drain_order.reason if self._state.drain_order else "",
        )
        return Heartbeat(report=loaded, held=held, fits=self._fits())

    def _orders(self) -> OrdersReport | None:
        orders = self._state.orders
        return None if orders is None else replace(orders, room_bytes=self._models.budget)

    def _peers(self) -> tuple[PeerReport, ...]:
        reports = (engine.peer_report for engine in self._models.with_peers)
        return tuple(report for report in reports if report is not None)

    def _is_alive(self, job: HeldJob) -> bool:
        """Return whether a job goes on: outside an engine, or inside one that responds."""
        model = self._models.of(job.lease.model)
        is_outside = job.state in (HeldState.LEFT, HeldState.AWAITS_MODEL)
        return is_outside or (model is not None and model.is_ready)

    def _fits(self) -> dict[str, CostFit]:
        """Return what the engines have measured, with what loading their models took."""
        measured = [(model, model.fit) for model in self._models.all if model.fit]
        return {model.name: replace(fit, load_seconds=model.load_seconds) for model, fit in measured}


def _adapters(models: Iterable[ServedModel]) -> tuple[str, ...]:
    """Return the adapters in the engines' memory, those first that each used last."""
    heartbeats = [model.engine.last_heartbeat for model in models if model.is_ready and model.engine]
    ranked = zip_longest(*(heartbeat.adapters for heartbeat in heartbeats if heartbeat is not None))
    digests = dict.fromkeys(digest for row in ranked for digest in row if digest is not None)
    return tuple(digests)[:MAX_RESIDENT_ADAPTERS]


def _parts(peers: Iterable[PeerReport]) -> set[tuple[str, bool]]:
    """Return the parts of the state whose changes cannot wait for the next heartbeat."""
    return {(peer.model, peer.is_complete) for peer in peers}
