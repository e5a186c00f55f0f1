"""How long a queued job is likely to wait: a range, since under fair queueing a place may get worse."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diffuserve.domain.job import Band, Job, QueueEstimate

_DOUBT = 1.5  # predictions of seconds are off by as much


@dataclass(frozen=True)
class LaneSize:
    """Ready jobs of one tenant, band and model."""

    band: Band
    tenant_id: str
    model: str
    num_ready: int
    work_seconds: float


@dataclass(frozen=True)
class Before:
    """Jobs of the same tenant that go first, and what the workers have in hand."""

    num_jobs: int
    work_seconds: float
    running_seconds: float
    num_workers: int


def estimate_wait(
    job: Job, lanes: Sequence[LaneSize], weights: Mapping[str, float], before: Before
) -> QueueEstimate:
    """At least the tenant's own work and the others' fair share of the meantime; at most all of it."""
    own = before.work_seconds + job.cost_seconds
    others = [lane for lane in lanes if lane.model == job.model and lane.tenant_id != job.tenant_id]
    rivals = [lane for lane in others if lane.band.rank <= job.band.rank]
    shares = [_share(lane, job, own, weights) for lane in rivals]
    fair_work = sum(share * lane.work_seconds for share, lane in zip(shares, rivals, strict=True))
    fair_jobs = sum(share * lane.num_ready for share, lane in zip(shares, rivals, strict=True))
    all_work = before.running_seconds + own + sum(lane.work_seconds for lane in others)
    workers = max(before.num_workers, 1)
    low = job.cost_seconds + (before.work_seconds + fair_work) / workers
    high = job.cost_seconds + _DOUBT * all_work / workers
    return QueueEstimate(before.num_jobs + round(fair_jobs), round(low, 3), round(max(low, high), 3))


def _share(lane: LaneSize, job: Job, own_work: float, weights: Mapping[str, float]) -> float:
    """The part of a rival's lane that is likely to go first."""
    if lane.band.rank < job.band.rank or lane.work_seconds <= 0:
        return 1.0
    due = own_work * weights.get(lane.tenant_id, 1.0) / weights.get(job.tenant_id, 1.0)
    return min(1.0, due / lane.work_seconds)
