"""Use of the devices: by outcome, and by tenant beside what its weight entitles it to."""

import heapq
from collections import Counter

from diffuserve.domain.jobs.outcomes import USEFUL_OUTCOMES
from diffuserve.domain.resources.operations import OutcomeSecondsResource, TenantShareResource
from diffuserve.jobs.database.tallies import Tallies
from diffuserve.jobs.database.tally import TallyCount, TallyKind
from diffuserve.jobs.reads.overview import Overview

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
    useful = sum(outcomes[outcome].seconds for outcome in USEFUL_OUTCOMES if outcome in outcomes)
    return round(useful / total, 4) if total > 0 else None


def fair_share_error(overview: Overview) -> float:
    """Return which part of the device-seconds went to other tenants than is fair.

    That is half the sum of the differences between used and fair shares, of the tenants that have ready jobs:
    the others use less than their share because they want no more. 0 if fewer than two of them compete.
    """
    waiting = sorted({lane.tenant_id for lane in overview.lanes})
    used = overview.tallies.of(TallyKind.TENANT)
    seconds = [used.get(tenant_id, _NOTHING).seconds for tenant_id in waiting]
    total, weights = sum(seconds), [overview.weights[tenant_id] for tenant_id in waiting]
    if len(waiting) < 2 or total <= 0:
        return 0.0
    shares = zip(seconds, weights, strict=True)
    return sum(abs(own / total - weight / sum(weights)) for own, weight in shares) / 2


def tenant_shares(overview: Overview, num_listed: int) -> tuple[TenantShareResource, ...]:
    """Return the tenants that used, use or wait for most, in order of their names."""
    used = overview.tallies.of(TallyKind.TENANT)
    total = sum(count.seconds for count in used.values())
    all_weights = sum(overview.weights.values())
    num_running = Counter(job.tenant_id for job in overview.running)
    num_ready: Counter[str] = Counter()
    size = {tenant_id: used.get(tenant_id, _NOTHING).seconds for tenant_id in overview.weights}
    for lane in overview.lanes:
        num_ready[lane.tenant_id] += lane.num_ready
        size[lane.tenant_id] += lane.work_seconds
    largest = heapq.nsmallest(num_listed, size, key=lambda tenant_id: (-size[tenant_id], tenant_id))
    return tuple(
        TenantShareResource(
            id=tenant_id,
            weight=overview.weights[tenant_id],
            device_seconds=round(seconds, 3),
            share=round(seconds / total, 4) if total > 0 else 0.0,
            fair_share=round(overview.weights[tenant_id] / all_weights, 4),
            num_ready=num_ready[tenant_id],
            num_running=num_running[tenant_id],
        )
        for tenant_id in sorted(largest)
        for seconds in (used.get(tenant_id, _NOTHING).seconds,)
    )
