"""A worker's metrics for Prometheus; no label has a value per job."""

from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from diffuserve.agent.engines.served_model import ServedModel
from diffuserve.agent.metrics_server import MetricsServer
from diffuserve.agent.spot.base import NoticeKind
from diffuserve.domain.workers.worker import WorkerState
from diffuserve.protocol.messages import EngineHeartbeat, FilterVerdict
from diffuserve.telemetry.gpus import GpuReader
from diffuserve.telemetry.metrics import GpuSeries, WorkerSeries


class WorkerMetrics:
    """Records what a worker does in its own series."""

    def __init__(self) -> None:
        self._series = WorkerSeries()
        self.registry = self._series.registry
        self._last_heartbeats: dict[str, EngineHeartbeat] = {}
        self._num_loads: Counter[str] = Counter()

    @asynccontextmanager
    async def served(self, host: str, port: int | None) -> AsyncIterator[None]:
        """Serve the metrics, with the GPUs', within the block. Raise `InvalidParams` if that cannot be."""
        server = MetricsServer(self.registry)
        if port is not None:
            self.registry.register(GpuSeries(GpuReader().read))
            await server.start(host, port)
        try:
            yield
        finally:
            server.close()

    def job_ended(self, status: str) -> None:
        self._series.jobs.labels(status).inc()

    def generated(self, model: str, steps: int, seconds: float) -> None:
        self._series.generation_seconds.labels(model, str(steps)).observe(seconds)

    def lease_lost(self) -> None:
        self._series.leases_lost.inc()

    def spot_notice(self, kind: NoticeKind) -> None:
        self._series.notices.labels(kind).inc()

    def engine_died(self) -> None:
        self._series.restarts.inc()

    def judged(self, verdict: FilterVerdict) -> None:
        category = verdict.category or "none"
        self._series.verdicts.labels(verdict.stage, category, verdict.action).inc()
        self._series.filter_seconds.labels(verdict.stage).observe(verdict.seconds)

    def set_models(self, models: Iterable[ServedModel]) -> None:
        """Tell which models are in memory, and what loading them took."""
        for model in models:
            if model.announced is not None:
                self._series.resident.labels(model.name).set(model.is_resident)
                self._series.loads.labels(model.name).set(model.num_loads)
                self._series.load_seconds.labels(model.name).set(model.load_seconds)
                self._count_load(model)

    def _count_load(self, model: ServedModel) -> None:
        if model.num_loads > self._num_loads[model.name]:
            self._num_loads[model.name] = model.num_loads
            self._series.device_seconds.labels(model.name, "load").inc(model.load_seconds)

    def engine_heartbeat(self, model: str, heartbeat: EngineHeartbeat) -> None:
        """Observe the mean of the steps since the model's last heartbeat, and the last step's time."""
        if (step := heartbeat.steps_since(self._last_heartbeats.get(model))) is not None:
            self._series.batch_size.observe(step.num_requests)
            self._series.step_tokens.observe(step.num_tokens)
            self._series.step_seconds.labels(model).observe(step.seconds)
        self._last_heartbeats[model] = heartbeat
        if heartbeat.last_step_seconds is not None:
            self._series.last_step_seconds.set(heartbeat.last_step_seconds)
        if heartbeat.adaptive_limit is not None:
            self._series.adaptive_limit.labels(model).set(heartbeat.adaptive_limit)
        if heartbeat.good_share is not None:
            self._series.good_share.labels(model).set(heartbeat.good_share)

    def set_state(self, current: WorkerState) -> None:
        for state in WorkerState:
            self._series.state.labels(state).set(state is current)
