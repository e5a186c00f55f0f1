"""A worker's metrics for Prometheus; no label has a value per job."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.worker import WorkerState
from diffuserve.worker.messages import EngineHeartbeat, FilterVerdict
from diffuserve.worker.served_model import ServedModel
from diffuserve.worker.spot.base import NoticeKind

_SECONDS = (0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
_FILTER_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class WorkerMetrics:
    """The metrics of one worker, in a registry of their own: several workers fit into one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._jobs = Counter(
            "diffusion_worker_jobs", "Jobs that left this worker.", ["status"], registry=self.registry
        )
        self._generation_seconds = Histogram(
            "diffusion_generation_duration_seconds",
            "From a job's arrival in the engine to its files.",
            ["model", "steps"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._batch_size = Histogram(
            "diffusion_batch_size",
            "Requests that shared a denoising step, on average over a heartbeat.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128),
            registry=self.registry,
        )
        self._state = Gauge(
            "diffusion_worker_state", "1 for the state that holds.", ["state"], registry=self.registry
        )
        self._step_seconds = Gauge(
            "diffusion_worker_step_seconds", "The last denoising step.", registry=self.registry
        )
        self._restarts = Counter(
            "diffusion_worker_engine_restarts", "Engines that died.", registry=self.registry
        )
        self._leases_lost = Counter(
            "diffusion_worker_leases_lost", "Leases that others got.", registry=self.registry
        )
        self._notices = Counter(
            "diffusion_worker_spot_notices",
            "Notices of the cloud about the end of this machine.",
            ["kind"],
            registry=self.registry,
        )
        self._verdicts = Counter(
            "diffusion_safety_verdicts",
            "Images, clips and previews that the filter saw.",
            ["stage", "category", "action"],
            registry=self.registry,
        )
        self._filter_seconds = Histogram(
            "diffusion_safety_filter_seconds",
            "The filter's look at one image, or at all frames of a clip.",
            ["stage"],
            buckets=_FILTER_SECONDS,
            registry=self.registry,
        )
        self._resident = Gauge(
            "diffusion_worker_model_resident",
            "1 for a model in memory, 0 for one that the worker may load.",
            ["model"],
            registry=self.registry,
        )
        self._loads = Gauge(
            "diffusion_worker_model_loads",
            "Times that the model was loaded since the worker started.",
            ["model"],
            registry=self.registry,
        )
        self._load_seconds = Gauge(
            "diffusion_worker_model_load_seconds", "The model's last load.", ["model"], registry=self.registry
        )
        self._last_heartbeats: dict[str, EngineHeartbeat] = {}

    def serve(self, port: int) -> None:
        """Serve the metrics over HTTP. Raise `InvalidParams` if the port cannot be used."""
        try:
            start_http_server(port, registry=self.registry)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            remedy = f"cannot listen on it: {reason.lower()}; give another --metrics-port, or leave it out"
            raise InvalidParams("metrics_port", port, remedy) from error

    def job_ended(self, status: str) -> None:
        self._jobs.labels(status).inc()

    def generated(self, model: str, steps: int, seconds: float) -> None:
        self._generation_seconds.labels(model, str(steps)).observe(seconds)

    def lease_lost(self) -> None:
        self._leases_lost.inc()

    def spot_notice(self, kind: NoticeKind) -> None:
        self._notices.labels(kind).inc()

    def engine_died(self) -> None:
        self._restarts.inc()

    def judged(self, verdict: FilterVerdict) -> None:
        category = verdict.category or "none"
        self._verdicts.labels(verdict.stage, category, verdict.action).inc()
        self._filter_seconds.labels(verdict.stage).observe(verdict.seconds)

    def set_models(self, models: Iterable[ServedModel]) -> None:
        """Tell which models are in memory, and what loading them took."""
        for model in models:
            if model.announced is not None:
                self._resident.labels(model.name).set(model.is_resident)
                self._loads.labels(model.name).set(model.num_loads)
                self._load_seconds.labels(model.name).set(model.load_seconds)

    def engine_heartbeat(self, model: str, heartbeat: EngineHeartbeat) -> None:
        """Observe the mean batch size since the model's last heartbeat, and the last step's time."""
        if (mean_batch := heartbeat.mean_batch_since(self._last_heartbeats.get(model))) is not None:
            self._batch_size.observe(mean_batch)
        self._last_heartbeats[model] = heartbeat
        if heartbeat.last_step_seconds is not None:
            self._step_seconds.set(heartbeat.last_step_seconds)

    def set_state(self, current: WorkerState) -> None:
        for state in WorkerState:
            self._state.labels(state).set(state is current)
