"""Settings of the job store. Every time is in seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.jobs.claim import MAX_MODELS_OF_KEY
from diffuserve.domain.jobs.job import Job, JobStatus
from diffuserve.domain.jobs.lease_times import check_times
from diffuserve.domain.tenant import DEFAULT_PLANS, Plan
from diffuserve.domain.workers.worker import MAX_WORKERS_OF_KEY
from diffuserve.options import option

DAY = 86_400.0
WEBHOOK_RETRY_SECONDS = (5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
DEFAULT_RETENTION: Mapping[JobStatus, float] = {
    JobStatus.SUCCEEDED: 7 * DAY,
    JobStatus.FAILED: DAY,
    JobStatus.CANCELED: DAY,
    JobStatus.EXPIRED: DAY,
}


@dataclass(frozen=True, kw_only=True)
class StoreConfig:
    """Settings of leases, fairness, retries, limits and retention.

    Options of operators say what they are; of the other fields:

    - `ageing_seconds`: a lane whose head has waited so long counts one band better.
    - `affinity_lookahead`, `affinity_seconds`, `affinity_wait_seconds`: a job whose model is resident may
      overtake at most so many jobs of its own tenant, and tenants at most so many weighted device-seconds
      ahead of it, as long as none of those overtaken has waited longer.
    - `affinity_loads`: nor is a job overtaken further, or for longer, than so many loads of its model take.
    - `deadline_lead_seconds`: time before the latest start that a job's deadline allows from which it goes
      before the others of its tenant and band.
    - `resident_wait_seconds`: time for which a worker that would have to load a model, or a job's adapters,
      leaves the job to those that have them in memory.
    - `hint_wait_seconds`: time for which a job is left to the worker that its hint prefers.
    - `max_transient_retries`, `max_worker_losses`: failed attempts by cause that are followed by another.
    - `retry_base_seconds`, `retry_cap_seconds`: first and longest pause of the backoff after a failure.
    - `batch_idle_seconds`: time after which a batch whose submission was interrupted is canceled.
    - `max_workers_of_key`, `max_models_of_key`: workers that are remembered for an API key, and models that
      the live ones of them offer together; of models that nobody offers or ever asked for, as many stay.
    - `idempotency_seconds`: time for which an idempotency key is remembered.
    - `webhook_retry_seconds`: pauses after the first, second, … failed attempt to deliver.
    - `retention_seconds`: time for which final jobs are kept, by status.
    - `delivered_seconds`: time for which a job that is not to be stored is kept after its delivery, so that
      all of its files can be fetched; and `undelivered_seconds` after its end, where nobody fetches any.
    """

    lease_seconds: float = option(
        30.0,
        "Seconds without a heartbeat after which a worker's jobs are leased to others; at least three "
        "heartbeats.",
        gt=0,
    )
    heartbeat_seconds: float = option(10.0, "Seconds between a worker's heartbeats.", gt=0)
    ageing_seconds: float = 60.0
    affinity_lookahead: int = 32
    affinity_seconds: float = 30.0
    affinity_wait_seconds: float = 60.0
    affinity_loads: float = 10.0
    deadline_lead_seconds: float = 30.0
    on_demand_wait_seconds: float = option(
        0.2,
        "Seconds for which spot workers leave an interactive job, or one close to its deadline, to workers "
        "on demand, while there are any.",
        ge=0,
    )
    spot_wait_seconds: float = option(
        60.0,
        "Seconds for which workers on demand leave a batch job to spot workers, while there are any.",
        ge=0,
    )
    resident_wait_seconds: float = 0.5
    hint_wait_seconds: float = 1.0
    preempt_after_seconds: float = option(
        0.5,
        "Seconds after which a batch job is preempted for an interactive job that no worker has room for; 0 "
        "for never.",
        ge=0,
        le=3_600,
    )
    max_preemptions: int = option(3, "Times that a job may be preempted for others.", ge=0, le=1_000)
    max_transient_retries: int = 3
    max_worker_losses: int = 3
    retry_base_seconds: float = 1.0
    retry_cap_seconds: float = 60.0
    max_backlog_seconds: float = option(
        7 * DAY, "Queued device-seconds above which new jobs are refused.", gt=0
    )
    max_workers_of_key: int = MAX_WORKERS_OF_KEY
    max_models_of_key: int = MAX_MODELS_OF_KEY
    batch_idle_seconds: float = 3_600.0
    idempotency_seconds: float = DAY
    webhook_retry_seconds: tuple[float, ...] = WEBHOOK_RETRY_SECONDS
    audit_seconds: float = option(90 * DAY, "Seconds that verdicts of the filters are kept.", gt=0)
    retention_seconds: Mapping[JobStatus, float] = field(default_factory=lambda: dict(DEFAULT_RETENTION))
    delivered_seconds: float = 300.0
    undelivered_seconds: float = 3_600.0
    plans: Mapping[str, Plan] = field(default_factory=lambda: dict(DEFAULT_PLANS))
    default_plan: str = option("standard", "Plan of a tenant that has none of its own.")

    def __post_init__(self) -> None:
        check_times(self.lease_seconds, self.heartbeat_seconds)
        if self.default_plan not in self.plans:
            raise InvalidParams("default_plan", self.default_plan, f"known plans: {', '.join(self.plans)}")

    def kept_until(self, job: Job) -> float | None:
        """Return when a job and its files are deleted at the earliest; `None` until the job is final."""
        if job.finished_at is None or not job.status.is_final:
            return None
        kept_until = job.finished_at + (
            self.longest_kept if job.batch_id else self.retention_seconds[job.status]
        )
        return kept_until if job.forget_at is None else min(kept_until, job.forget_at)

    @property
    def longest_kept(self) -> float:
        """The longest time for which any job is kept, and the most that a job may name."""
        return max(self.retention_seconds.values())

    def plan(self, name: str) -> Plan:
        """Return the plan of that name, or the default plan if the settings no longer define it."""
        return self.plans.get(name, self.plans[self.default_plan])
