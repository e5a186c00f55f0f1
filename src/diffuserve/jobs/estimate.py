"""Estimates of a queued job's wait: a range, since under fair queueing a job can lose places as well."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diffuserve.domain.job import Band, Job, QueueEstimate
from diffuserve.domain.readiness import ModelStatus

_DOUBT = 1.5  # factor by which predictions of device-seconds are often wrong


@dataclass(frozen=True)
class LaneSize:
    """Number and predicted device-seconds of the ready jobs of one tenant, band, model and phase."""

    band: Band
    tenant_id: str
    model: str
    num_ready: int
    work_seconds: float
    is_decode: bool = False


@dataclass(frozen=True)
class WorkAhead:
    """Work that precedes a queued job: earlier jobs of its tenant, and what the workers are running.

    `num_workers` are ready for the phase of its model that it waits for, whose readiness is `status`. Seconds
    are predicted device-seconds.
    """

    num_jobs: int
    work_seconds: float
    running_seconds: float
    num_workers: int
    status: ModelStatus = ModelStatus.READY


def estimate_wait(
    job: Job, lanes: Sequence[LaneSize], weights: Mapping[str, float], ahead: WorkAhead
) -> QueueEstimate:
    """Return how long the job is likely to wait and run; no time while no worker is ready for its model.

    The low end counts its tenant's own work and the fair share of the other tenants in that time; the
    high end counts all queued work of its model, and doubts the predictions.
    """
    own_work = ahead.work_seconds + job.work_seconds
    rivals = [lane for lane in lanes if lane.model == job.model and lane.is_decode == job.is_denoised]
    others = [lane for lane in rivals if lane.tenant_id != job.tenant_id]
    rivals = [lane for lane in others if lane.band.rank <= job.band.rank]
    shares = [(_share(lane, job, own_work, weights), lane) for lane in rivals]
    fair_work = sum(share * lane.work_seconds for share, lane in shares)
    fair_jobs = sum(share * lane.num_ready for share, lane in shares)
    all_work = ahead.running_seconds + own_work + sum(lane.work_seconds for lane in others)
    num_ahead = ahead.num_jobs + round(fair_jobs)
    most_ahead = ahead.num_jobs + sum(lane.num_ready for lane in others)
    if ahead.num_workers == 0:
        return QueueEstimate(num_ahead, None, None, _reason(job, ahead.status), most_ahead)
    low = job.work_seconds + (ahead.work_seconds + fair_work) / ahead.num_workers
    high = job.work_seconds + _DOUBT * all_work / ahead.num_workers
    return QueueEstimate(num_ahead, round(low, 3), round(max(low, high), 3), ahead_high=most_ahead)


def _reason(job: Job, status: ModelStatus) -> str:
    """Say why nothing can be foretold: no worker is ready for what the job waits for."""
    if job.is_denoised:
        return (
            f"its latents are finished, and no worker of role decode or all serves {job.model} at present: "
            "start one with `diffuserve worker --role decode`"
        )
    is_loading = status is ModelStatus.LOADING
    return f"{job.model} is being loaded" if is_loading else f"no worker serves {job.model} at present"


def _share(lane: LaneSize, job: Job, own_work: float, weights: Mapping[str, float]) -> float:
    """Return the part, in 0…1, of another tenant's lane that is likely to be served before the job."""
    if lane.band.rank < job.band.rank or lane.work_seconds <= 0:
        return 1.0
    fair_seconds = own_work * weights.get(lane.tenant_id, 1.0) / weights.get(job.tenant_id, 1.0)
    return min(1.0, fair_seconds / lane.work_seconds)
