"""Every metric of the control plane and of workers. Labels have few values: never a job or a tenant."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from diffuserve.domain.jobs.job import EndedJob, Phase
from diffuserve.domain.safety import SafetyStage, Verdict
from diffuserve.domain.workers.worker import ReleaseCause
from diffuserve.telemetry.gpus import GpuReading
from diffuserve.telemetry.store_series import StoreSeries

disable_created_metrics()  # type: ignore[no-untyped-call]  # a fourth of all series, which no query needs

# Seconds, of work on models from tiny ones to those of long videos.
GENERATION_BUCKETS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200)
# Seconds, from an image of a tiny model on a fast GPU to a long video.
JOB_BUCKETS = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2.5, 5, 10, 15, 20, 30, 60, 120, 240, 480, 960, 1920, 7680)
TOKEN_BUCKETS = tuple(64 * 4**exponent for exponent in range(8))
CALL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
# What puts a job back; beside it there is `error`, for what workers report.
REQUEUE_CAUSES = frozenset({*ReleaseCause, "operator"})


class ControlMetrics(StoreSeries):
    """The metrics in their own registries, so that a process can hold several apps."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "diffusion_requests",
            "Jobs that reached a final status through this process.",
            ["status", "model"],
            registry=registry,
        )
        self.accepted = Counter(
            "diffusion_jobs_accepted",
            "Accepted submissions, repeated ones included.",
            ["model", "band"],
            registry=registry,
        )
        self.generation_seconds = Histogram(
            "diffusion_generation_duration_seconds",
            "Time from claim to result of jobs that succeeded, by number of denoising steps.",
            ["model", "steps"],
            buckets=GENERATION_BUCKETS,
            registry=registry,
        )
        self.device_seconds = Counter(
            "diffusion_gpu_seconds",
            "Device-seconds of attempts that ended, by outcome: useful, canceled or lost.",
            ["model", "outcome"],
            registry=registry,
        )
        self.phase_seconds = Histogram(
            "diffusion_phase_seconds",
            "Time that jobs which succeeded spent in a phase.",
            ["phase"],
            buckets=JOB_BUCKETS,
            registry=registry,
        )
        self.queue_seconds = Histogram(
            "diffusion_job_queue_seconds",
            "Time from submission to claim, for jobs submitted and claimed through this process.",
            buckets=JOB_BUCKETS,
            registry=registry,
        )
        self.run_seconds = Histogram(
            "diffusion_job_run_seconds",
            "Time from claim to the end of the attempt, whatever its outcome.",
            buckets=JOB_BUCKETS,
            registry=registry,
        )
        self.job_seconds = Histogram(
            "diffusion_job_duration_seconds",
            "Time from submission to the final status.",
            ["status"],
            buckets=JOB_BUCKETS,
            registry=registry,
        )
        self.preempted = Counter(
            "diffusion_jobs_preempted",
            "Running jobs that made room for more urgent ones.",
            registry=registry,
        )
        self.leases_granted = Counter(
            "diffusion_leases_granted", "Jobs that workers got.", ["pool"], registry=registry
        )
        self.requeues = Counter(
            "diffusion_jobs_requeued",
            "Jobs that went back to the queue without an outcome, by cause.",
            ["cause"],
            registry=registry,
        )
        for cause in (*REQUEUE_CAUSES, "error"):
            self.requeues.labels(cause)
        self.leases_expired = Counter(
            "diffusion_leases_expired",
            "Leases that ended because their workers no longer renewed them.",
            registry=registry,
        )
        self.double_publishes = Counter(
            "diffusion_double_publishes",
            "Jobs that reached a final status while they had one. Any is a defect of the store.",
            registry=registry,
        )
        self.checkpoints_stored = Counter(
            "diffusion_checkpoints_stored", "Checkpoints that workers stored.", registry=registry
        )
        self.checkpoints_resumed = Counter(
            "diffusion_checkpoints_resumed", "Leases that began from a checkpoint.", registry=registry
        )
        self.claim_seconds = Histogram(
            "diffusion_claim_seconds",
            "Duration of a query for claimable jobs.",
            buckets=CALL_BUCKETS,
            registry=registry,
        )
        self.fenced_writes = Counter(
            "diffusion_fenced_writes",
            "Writes by workers that were refused because their lease was lost.",
            registry=registry,
        )
        self.interrupted = Counter(
            "diffusion_jobs_interrupted",
            "Running jobs whose worker handed them back as its machine was taken away.",
            registry=registry,
        )
        self.webhook_attempts = Counter(
            "diffusion_webhook_attempts",
            "Attempts to deliver a webhook: delivered, refused, gone or unreachable.",
            ["outcome"],
            registry=registry,
        )
        self.verdicts = Counter(
            "diffusion_safety_verdicts",
            "Verdicts of the safety filters by the strictest finding; category `none` without a finding.",
            ["stage", "category", "action"],
            registry=registry,
        )
        self.filter_seconds = Histogram(
            "diffusion_safety_filter_seconds",
            "Duration of a check by a safety filter.",
            ["stage"],
            buckets=CALL_BUCKETS,
            registry=registry,
        )
        self.input_files = Counter(
            "diffusion_input_files",
            "Images that requests brought, by outcome: stored, or the code of the error.",
            ["outcome"],
            registry=registry,
        )
        self.input_bytes = Counter(
            "diffusion_input_file_bytes", "Bytes of the images that requests brought.", registry=registry
        )
        self.intake_seconds = Histogram(
            "diffusion_input_file_seconds",
            "Time from the last byte of an image that is stored to the end, waiting in turn included.",
            buckets=CALL_BUCKETS,
            registry=registry,
        )
        self.http_seconds = Histogram(
            "diffusion_http_request_duration_seconds",
            "Time from a request's first byte to its response's last, waiting in long polls included.",
            ["method", "route", "status"],
            buckets=CALL_BUCKETS,
            registry=registry,
        )

        self.store_up = Gauge(
            "diffusion_store_up",
            "1 while the artifact store takes and gives files, as this control plane tries it; else 0.",
            registry=registry,
        )
        self.database_up = Gauge(
            "diffusion_database_up",
            "1 if the database responds; else 0, and what is read from it has no series.",
            registry=registry,
        )
        self.database_writable = Gauge(
            "diffusion_database_writable",
            "1 if writes to the database are committed; else 0, as on a full disk.",
            registry=registry,
        )
        self.bus_connected = Gauge(
            "diffusion_event_bus_connected",
            "1 while messages of other control planes arrive, or if the control plane runs alone; else 0.",
            registry=registry,
        )
        self.bus_dropped = Counter(
            "diffusion_event_bus_dropped",
            "Messages not sent to other control planes, which find the changes by polling.",
            registry=registry,
        )
        self._num_bus_dropped = 0

    def set_bus(self, is_connected: bool, num_dropped: int) -> None:
        """Set the bus's metrics. `num_dropped` counts from the start of the process."""
        self.bus_connected.set(is_connected)
        self.bus_dropped.inc(num_dropped - self._num_bus_dropped)
        self._num_bus_dropped = num_dropped

    def observe_prompt_verdict(self, verdict: Verdict, seconds: float) -> None:
        """Count the verdict on a prompt, and record the duration of the check in seconds."""
        self.verdicts.labels(SafetyStage.PROMPT, verdict.category or "none", verdict.action).inc()
        self.filter_seconds.labels(SafetyStage.PROMPT).observe(seconds)

    def count_input_verdict(self, verdict: Verdict) -> None:
        """Count the verdict on an image that a request brings."""
        self.verdicts.labels(SafetyStage.INPUT, verdict.category or "none", verdict.action).inc()

    def count_final_job(self, job: EndedJob) -> None:
        """Count a job that reached a final status."""
        self.double_publishes.inc(job.was_final)
        self.requests.labels(job.status, job.model).inc()
        self.job_seconds.labels(job.status).observe(max(job.finished_at - job.created_at, 0.0))

    def count_requeue(self, cause: str) -> None:
        """Count a job that went back to the queue. Causes that workers name themselves count as `error`."""
        self.requeues.labels(cause if cause in REQUEUE_CAUSES else "error").inc()

    def observe_phases(self, timings: Mapping[str, float]) -> None:
        """Record the phases of a job that succeeded, of which `timings` has seconds by name."""
        for phase in ("queue", *Phase):
            if (seconds := timings.get(f"{phase}_seconds")) is not None:
                self.phase_seconds.labels(phase).observe(seconds)

    def text(self, with_store: bool = True) -> bytes:
        """Return all metrics in the text format of Prometheus, or only those that need no database."""
        own = generate_latest(self.registry)
        return own + generate_latest(self.store_registry) if with_store else own


class WorkerSeries:
    """The metrics of one worker, in a registry of their own: several workers fit into one process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.jobs = Counter(
            "diffusion_worker_jobs", "Jobs that left this worker.", ["status"], registry=registry
        )
        self.generation_seconds = Histogram(
            "diffusion_generation_duration_seconds",
            "Time from a job's arrival in the engine to its files.",
            ["model", "steps"],
            buckets=GENERATION_BUCKETS,
            registry=registry,
        )
        self.batch_size = Histogram(
            "diffusion_batch_size",
            "Requests that shared a denoising step, on average over a heartbeat.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128),
            registry=registry,
        )
        self.state = Gauge(
            "diffusion_worker_state", "1 for the state that holds.", ["state"], registry=registry
        )
        self.last_step_seconds = Gauge(
            "diffusion_worker_step_seconds", "Duration of the last denoising step.", registry=registry
        )
        self.step_seconds = Histogram(
            "diffusion_step_seconds",
            "Duration of a denoising step, on average over a heartbeat.",
            ["model"],
            buckets=CALL_BUCKETS,
            registry=registry,
        )
        self.step_tokens = Histogram(
            "diffusion_step_tokens",
            "Tokens of a denoising step, of all its requests, on average over a heartbeat.",
            buckets=TOKEN_BUCKETS,
            registry=registry,
        )
        self.adaptive_limit = Gauge(
            "diffusion_worker_adaptive_limit_tokens",
            "Tokens that a denoising step may have now, of an engine that follows an objective.",
            ["model"],
            registry=registry,
        )
        self.good_share = Gauge(
            "diffusion_worker_slo_good_share",
            "Share of the latest requests, from 0 to 1, that kept the objective of --adaptive.",
            ["model"],
            registry=registry,
        )
        self.device_seconds = Counter(
            "diffusion_gpu_seconds",
            "Device-seconds that loading models took; the control plane counts those of jobs.",
            ["model", "outcome"],
            registry=registry,
        )
        self.restarts = Counter(
            "diffusion_worker_engine_restarts", "Engine processes that died.", registry=registry
        )
        self.leases_lost = Counter(
            "diffusion_worker_leases_lost", "Leases lost to other workers.", registry=registry
        )
        self.notices = Counter(
            "diffusion_worker_spot_notices",
            "Notices of the cloud about the end of this machine.",
            ["kind"],
            registry=registry,
        )
        self.verdicts = Counter(
            "diffusion_safety_verdicts",
            "Images, clips and previews that the filter saw.",
            ["stage", "category", "action"],
            registry=registry,
        )
        self.filter_seconds = Histogram(
            "diffusion_safety_filter_seconds",
            "The filter's look at one image, or at all frames of a clip.",
            ["stage"],
            buckets=CALL_BUCKETS,
            registry=registry,
        )
        self.resident = Gauge(
            "diffusion_worker_model_resident",
            "1 for a model in memory, 0 for one that the worker may load.",
            ["model"],
            registry=registry,
        )
        self.loads = Gauge(
            "diffusion_worker_model_loads",
            "Times that the model was loaded since the worker started.",
            ["model"],
            registry=registry,
        )
        self.load_seconds = Gauge(
            "diffusion_worker_model_load_seconds",
            "Duration of the model's last load.",
            ["model"],
            registry=registry,
        )


class GpuSeries(Collector):
    """The metrics of a machine's GPUs, read when somebody looks; what nobody can read has no series."""

    def __init__(self, read: Callable[[], Sequence[GpuReading]]) -> None:
        self._read = read

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics without values."""
        yield _gpu_gauge("gpu_memory_used_bytes", "Memory of the GPU that is in use, by all processes.")
        yield _gpu_gauge("gpu_memory_total_bytes", "Memory of the GPU.")
        yield _gpu_gauge("gpu_utilization_percent", "Share of the last moments in which the GPU had work.")

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics that have values."""
        memory, total, utilization = self.describe()
        for reading in self._read():
            if reading.memory_used_bytes is not None:
                memory.add_metric([reading.gpu_id], reading.memory_used_bytes)
            if reading.memory_total_bytes is not None:
                total.add_metric([reading.gpu_id], reading.memory_total_bytes)
            if reading.utilization_percent is not None:
                utilization.add_metric([reading.gpu_id], reading.utilization_percent)
        yield from (family for family in (memory, total, utilization) if family.samples)


def _gpu_gauge(name: str, documentation: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, documentation, labels=["gpu_id"])
