"""Which lane is served next: a pure function of what the queue holds.

Start-time fair queueing over tenants: virtual time advances by device-seconds over weight, and the
tenant that is furthest behind goes first. Bands come before virtual time, age before bands, and a
job whose model is resident may go first within stated bounds.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from diffuserve.domain.job import Band
from diffuserve.domain.tenant import Tenant
from diffuserve.jobs.config import StoreConfig

_ANYBODY = (math.inf, "", 0)


@dataclass
class TenantAccount:
    """A tenant while claims are made; owned by the transaction that makes them."""

    tenant: Tenant
    vtime: float
    num_running: int

    @property
    def may_start(self) -> bool:
        return self.num_running < self.tenant.plan.max_running

    def charge(self, seconds: float) -> None:
        self.vtime += seconds / self.tenant.plan.weight
        self.num_running += 1


@dataclass
class Lane:
    """Ready jobs of one band, tenant and model, as far as a choice looks: its head.

    `head_at` is when the head was submitted, `head_since` when it became the head.
    """

    key: str
    band: Band
    account: TenantAccount
    model: str
    head_seq: int
    head_at: float
    head_since: float


def choose_lane(
    lanes: Sequence[Lane],
    models: Collection[str],
    resident_models: Iterable[str],
    now: float,
    config: StoreConfig,
) -> Lane | None:
    """The lane whose head goes to a worker that serves `models`; `None` if nobody may start.

    `resident_models` are those that it has in memory.
    """
    by_rank: dict[int, list[Lane]] = {}
    for lane in lanes:
        if lane.model in models and lane.account.may_start:
            by_rank.setdefault(_rank(lane, now, config), []).append(lane)
    if not by_rank:
        return None
    contenders = by_rank[min(by_rank)]
    fairest = min(contenders, key=_order)
    resident = frozenset(resident_models)
    overdue = [lane for lane in contenders if now - lane.head_since > config.affinity_wait_seconds]
    last = _order(min(overdue, key=_order)) if overdue else _ANYBODY  # nobody behind it may pass it
    warm = [
        lane
        for lane in contenders
        if lane.model in resident and _order(lane) <= last and _is_near(lane, contenders, fairest, config)
    ]
    return min(warm, key=_order, default=fairest)


def _rank(lane: Lane, now: float, config: StoreConfig) -> int:
    """The band's rank, one better for each ageing time that the head has waited."""
    return max(0, lane.band.rank - int((now - lane.head_at) / config.ageing_seconds))


def _order(lane: Lane) -> tuple[float, str, int]:
    return (lane.account.vtime, lane.account.tenant.id, lane.head_seq)


def _is_near(lane: Lane, contenders: Sequence[Lane], fairest: Lane, config: StoreConfig) -> bool:
    """Whether `lane` may pass: little virtual time ahead of the fairest, few places ahead in its tenant."""
    ahead = lane.account.vtime - fairest.account.vtime
    first = min(one.head_seq for one in contenders if one.account is lane.account)
    return ahead <= config.affinity_seconds and lane.head_seq - first <= config.affinity_lookahead
