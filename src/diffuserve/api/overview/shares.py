"""Use of the devices: by outcome, and by tenant beside what its weight entitles it to."""

from collections import Counter

from diffuserve.domain.job import JobStatus
from diffuserve.domain.resources.operations import OutcomeSecondsResource, TenantShareResource
from diffuserve.jobs.finish import DENOISED
from diffuserve.jobs.overview import Overview
from diffuserve.jobs.tallies import Tallies
from diffuserve.jobs.tally import TallyCount, TallyKind

_USEFUL = (JobStatus.SUCCEEDED.value, DENOISED)
_NOTHING = TallyCount()


def device_seconds_of(counted: Tallies) -> tuple[OutcomeSecondsResource, ...]:
    """Return the device-seconds by outcome, in order of the outcomes' names."""
    return tuple(
        OutcomeSecondsResource(id=outcome, seconds=round(count.seconds, 3), num_attempts=count.num)
        for outcome, count in sorted(counted.of(TallyKind.OUTCOME).items())
    )


def useful_share(counted: Tallies) -> float | None:
    """Return the part of all device-seconds that went into useful attempts; `None` if there were none."""
    outcomes = counted.of(TallyKind.OUTCOME)
    total = sum(count.seconds for count in outcomes.values())
    useful = sum(outcomes[outcome].seconds for outcome in _USEFUL if outcome in outcomes)
    return round(useful / total, 4) if total > 0 else None


def tenant_shares(overview: Overview) -> tuple[TenantShareResource, ...]:
    """Return the tenants that used, use or wait for devices, those that use and wait for most first."""
    used = overview.tallies.of(TallyKind.TENANT)
    total = sum(count.seconds for count in used.values())
    weights = sum(overview.weights.values())
    running = Counter(job.tenant_id for job in overview.running)
    ready: Counter[str] = Counter()
    waiting: dict[str, float] = dict.fromkeys(overview.weights, 0.0)
    for lane in overview.lanes:
        ready[lane.tenant_id] += lane.num_ready
        waiting[lane.tenant_id] += lane.work_seconds
    seconds = {tenant_id: used.get(tenant_id, _NOTHING).seconds for tenant_id in overview.weights}
    by_size = sorted(seconds, key=lambda tenant_id: (-seconds[tenant_id] - waiting[tenant_id], tenant_id))
    return tuple(
        TenantShareResource(
            id=tenant_id,
            weight=overview.weights[tenant_id],
            device_seconds=round(seconds[tenant_id], 3),
            share=round(seconds[tenant_id] / total, 4) if total > 0 else 0.0,
            fair_share=round(overview.weights[tenant_id] / weights, 4),
            num_ready=ready[tenant_id],
            num_running=running[tenant_id],
        )
        for tenant_id in by_size
    )
