"""Estimates of a queued job's wait: a range, since later jobs can overtake it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diffuserve.domain.jobs.job import Band, Job, QueueEstimate
from diffuserve.domain.workers.readiness import ModelStatus
from diffuserve.jobs.policy.fairness import BAND_SECONDS

# Factors of predicted seconds, fitted to simulated queues, in each of which four in five jobs start and end
# within the range (tests/unit/jobs/policy/test_estimate_ranges.py). Later jobs may overtake, queued ones may
# be canceled, predictions may be wrong, and steps that many share take less of the device for each of them,
# but last longer.
_MIN_AHEAD, _MAX_AHEAD = 0.4, 2.2
_MIN_RUN, _MAX_RUN = 0.4, 2.5
_MAX_RUNNING = 1.4
_MAX_TURNS = 2.0  # of a job's own work: what each running job does before it ends


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
class TenantStanding:
    """A tenant's place under fair queueing: its weight, and its virtual time in weighted device-seconds.

    At most `max_running` of its jobs run at a time, if there is a limit.
    """

    weight: float = 1.0
    vtime: float = 0.0
    max_running: int | None = None

    def num_serving(self, num_workers: int) -> int:
        """Return how many of the workers can run its jobs at the same time."""
        return num_workers if self.max_running is None else min(num_workers, self.max_running)


@dataclass(frozen=True)
class RunningWork:
    """Number of the running jobs of a model, and the device-seconds predicted for the whole of them."""

    num_jobs: int = 0
    seconds: float = 0.0

    def plus(self, num_jobs: int, seconds: float) -> "RunningWork":
        """Return the work with so much more of it, or less, but never below none."""
        return RunningWork(max(0, self.num_jobs + num_jobs), max(0.0, self.seconds + seconds))


@dataclass(frozen=True)
class WorkAhead:
    """Work that precedes a queued job: earlier jobs of its lane, and what the workers are running.

    `num_workers` workers are ready for the job's model and phase, whose readiness is `status`, and
    `num_coming` are loading it. Seconds are predicted device-seconds.
    """

    num_jobs: int
    work_seconds: float
    running: RunningWork
    num_workers: int
    status: ModelStatus = ModelStatus.READY
    num_coming: int = 0


def estimate_wait(
    job: Job, lanes: Sequence[LaneSize], standings: Mapping[str, TenantStanding], ahead: WorkAhead
) -> QueueEstimate:
    """Return when the job is likely to end; no time while no worker is ready for its model.

    Served before it are its tenant's better bands, its lane's earlier jobs, and the other tenants' jobs until
    their virtual time reaches the one at which the job is next (start-time fair queueing). That time is later
    for better bands and earlier for worse ones.
    """
    rivals = [lane for lane in lanes if lane.model == job.model and lane.is_decode == job.is_denoised]
    vtimes = _vtimes_after_better(job, rivals, standings)
    turn = vtimes[job.tenant_id] + ahead.work_seconds / standings[job.tenant_id].weight
    shares = [(_share(lane, job, turn, vtimes, standings), lane) for lane in rivals]
    num_ahead = ahead.num_jobs + round(sum(share * lane.num_ready for share, lane in shares))
    others = sum(
        lane.num_ready for lane in rivals if lane.tenant_id != job.tenant_id or _is_better(lane, job)
    )
    max_ahead = ahead.num_jobs + others
    if ahead.num_workers == 0:
        return QueueEstimate(num_ahead, None, None, _reason(job, ahead.status), max_ahead)
    others_seconds = sum(share * lane.work_seconds for share, lane in shares)
    low, high = _range(job.work_seconds, others_seconds, standings[job.tenant_id], ahead)
    return QueueEstimate(num_ahead, round(low, 3), round(high, 3), ahead_high=max_ahead)


def _range(
    own_seconds: float, others_seconds: float, standing: TenantStanding, ahead: WorkAhead
) -> tuple[float, float]:
    """Return the likely minimum and maximum seconds until a job ends with so much work of others before it.

    Workers that are coming help at best.
    """

    def wait(num_workers: int) -> float:
        lane_seconds = ahead.work_seconds / standing.num_serving(num_workers)
        return lane_seconds + others_seconds / num_workers

    low = _MIN_AHEAD * wait(ahead.num_workers + ahead.num_coming) + _MIN_RUN * own_seconds
    running_seconds = _running_before(own_seconds, ahead) / ahead.num_workers
    high = _MAX_AHEAD * wait(ahead.num_workers) + _MAX_RUNNING * running_seconds + _MAX_RUN * own_seconds
    return low, high


def _running_before(own_seconds: float, ahead: WorkAhead) -> float:
    """Return how many device-seconds of the running jobs a job may have to wait for.

    Jobs that share a worker take turns, so none delays another by much more than that one's own work.
    """
    running = ahead.running
    if running.num_jobs <= ahead.num_workers:
        return running.seconds
    return min(running.seconds, _MAX_TURNS * own_seconds * running.num_jobs)


def _reason(job: Job, status: ModelStatus) -> str:
    """Say why there is no estimate: no worker is ready for the job's model and phase."""
    if job.is_denoised:
        return (
            f"its latents are finished, and no worker of role decode or all serves {job.model} at present: "
            "start one with `diffuserve worker --role decode`"
        )
    if status is ModelStatus.LOADING:
        return f"{job.model} is being loaded"
    if job.exact:
        weights = "weights that are known not to be quantized"
        return f"no worker serves {job.model} with {weights}: the job is exact"
    return f"no worker serves {job.model} at present"


def _is_better(lane: LaneSize, job: Job) -> bool:
    return lane.band.rank < job.band.rank


def _vtimes_after_better(
    job: Job, lanes: Sequence[LaneSize], standings: Mapping[str, TenantStanding]
) -> Mapping[str, float]:
    """Return the tenants' virtual times once their work of bands better than the job's is done."""
    vtimes = {tenant_id: standing.vtime for tenant_id, standing in standings.items()}
    for lane in lanes:
        if _is_better(lane, job):
            vtimes[lane.tenant_id] += lane.work_seconds / standings[lane.tenant_id].weight
    return vtimes


def _share(
    lane: LaneSize,
    job: Job,
    turn: float,
    vtimes: Mapping[str, float],
    standings: Mapping[str, TenantStanding],
) -> float:
    """Return the fraction of a lane that is likely to be served before the job.

    The job is next once its tenant's virtual time is `turn`.
    """
    if lane.tenant_id == job.tenant_id:
        return float(_is_better(lane, job))
    if lane.work_seconds <= 0:
        return float(lane.band.rank <= job.band.rank)
    lead = BAND_SECONDS * ((lane.band.rank < job.band.rank) - (lane.band.rank > job.band.rank))
    before = standings[lane.tenant_id].vtime if _is_better(lane, job) else vtimes[lane.tenant_id]
    behind = turn + lead - before
    return min(max(behind * standings[lane.tenant_id].weight / lane.work_seconds, 0.0), 1.0)
