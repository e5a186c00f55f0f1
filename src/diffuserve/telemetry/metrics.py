"""Every metric of the control plane. Labels are few and bounded: never a job, a tenant or free text."""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from diffuserve.domain.job import Band, JobStatus
from diffuserve.domain.safety import Stage, Verdict
from diffuserve.domain.worker import WorkerState

# From a tiny model on a fast GPU to a film.
JOB_BUCKETS = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2.5, 5, 10, 15, 20, 30, 60, 120, 240, 480, 960, 1920, 7680)
CALL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class ControlMetrics:
    """One registry for each app, so that several live in one process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "diffusion_requests",
            "Jobs that reached a final status through this process.",
            ["status", "model"],
            registry=registry,
        )
        self.accepted = Counter(
            "diffusion_jobs_accepted",
            "Submissions answered with a job; one that is repeated counts again.",
            ["model", "band"],
            registry=registry,
        )
        self.generation_seconds = Histogram(
            "diffusion_generation_duration_seconds",
            "From claim to result of jobs that succeeded, by denoising steps.",
            ["model", "steps"],
            buckets=JOB_BUCKETS,
            registry=registry,
        )
        self.gpu_seconds = Counter(
            "diffusion_gpu_seconds",
            "device-seconds that workers reported.",
            ["model", "outcome"],
            registry=registry,
        )
        self.queue_seconds = Histogram(
            "diffusion_job_queue_seconds",
            "From submit to claim, of jobs that this process took in and gave out.",
            buckets=JOB_BUCKETS,
            registry=registry,
        )
        self.run_seconds = Histogram(
            "diffusion_job_run_seconds",
            "From claim to the end of the attempt, however it ended.",
            buckets=JOB_BUCKETS,
            registry=registry,
        )
        self.queue_size = Gauge("diffusion_queue_size", "Ready jobs.", ["band"], registry=registry)
        self.queue_work = Gauge(
            "diffusion_queue_work_seconds", "Predicted device-seconds of all ready jobs.", registry=registry
        )
        self.workers = Gauge("diffusion_workers", "Workers by state.", ["state"], registry=registry)
        self.claim_seconds = Histogram(
            "diffusion_claim_seconds",
            "One look for work in the store.",
            buckets=CALL_BUCKETS,
            registry=registry,
        )
        self.fenced_writes = Counter(
            "diffusion_fenced_writes",
            "Writes by workers that were refused because their lease was lost.",
            registry=registry,
        )
        self.webhook_attempts = Counter(
            "diffusion_webhook_attempts",
            "Tries to deliver a webhook: delivered, refused, gone or unreachable.",
            ["outcome"],
            registry=registry,
        )
        self.webhook_backlog = Gauge(
            "diffusion_webhook_backlog", "Webhooks still to be delivered.", registry=registry
        )
        self.verdicts = Counter(
            "diffusion_safety_verdicts",
            "Verdicts of the filters by what they found first; the category is `none` where all was well.",
            ["stage", "category", "action"],
            registry=registry,
        )
        self.filter_seconds = Histogram(
            "diffusion_safety_filter_seconds",
            "One look of a filter.",
            ["stage"],
            buckets=CALL_BUCKETS,
            registry=registry,
        )
        self.http_seconds = Histogram(
            "diffusion_http_request_duration_seconds",
            "From a request's first byte to its answer's last; long-polls wait on purpose.",
            ["method", "route", "status"],
            buckets=CALL_BUCKETS,
            registry=registry,
        )

        self.bus_connected = Gauge(
            "diffusion_event_bus_connected",
            "1 while other control planes are heard, and where there are none.",
            registry=registry,
        )
        self.bus_dropped = Counter(
            "diffusion_event_bus_dropped",
            "Messages that other control planes did not hear, and find out by looking.",
            registry=registry,
        )
        self._num_bus_dropped = 0

    def set_queue(self, ready: Iterable[tuple[Band, int, float]]) -> None:
        """From lanes of `(band, jobs, seconds of work)`."""
        jobs, work = dict.fromkeys(Band, 0), 0.0
        for band, num_ready, seconds in ready:
            jobs[band] += num_ready
            work += seconds
        for band, num_ready in jobs.items():
            self.queue_size.labels(band).set(num_ready)
        self.queue_work.set(work)

    def set_workers(self, counts: Mapping[WorkerState, int]) -> None:
        for state in WorkerState:
            self.workers.labels(state).set(counts.get(state, 0))

    def set_bus(self, is_connected: bool, num_dropped: int) -> None:
        """`num_dropped` counts from the start of the process."""
        self.bus_connected.set(is_connected)
        self.bus_dropped.inc(num_dropped - self._num_bus_dropped)
        self._num_bus_dropped = num_dropped

    def judged(self, verdict: Verdict, seconds: float) -> None:
        """Of a prompt."""
        self.verdicts.labels(Stage.PROMPT, verdict.category or "none", verdict.action).inc()
        self.filter_seconds.labels(Stage.PROMPT).observe(seconds)

    def ended(self, status: JobStatus, model: str) -> None:
        self.requests.labels(status, model).inc()

    def text(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self.registry)
