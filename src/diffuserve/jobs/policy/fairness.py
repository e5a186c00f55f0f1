"""The choice of the lane that is served next: a pure function of the queue.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) over tenants: a tenant's virtual time
advances by the device-seconds of its jobs over its weight, and the tenant that is furthest behind is
served first. Bands take precedence over virtual time, and age over bands, but neither lets a tenant get far
ahead of one that is further behind. A job whose model is resident may overtake others within bounds.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from diffuserve.domain.jobs.job import Band
from diffuserve.domain.workers.worker import WorkerRole
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.policy.lanes import Lane
from diffuserve.jobs.policy.placement import ANYWHERE, ClaimingWorker

BAND_SECONDS = 30.0
"""Weighted device-seconds by which a tenant may be served before others for its jobs' better band."""
_Order = tuple[float, str, int]
_BEHIND_ALL: _Order = (math.inf, "", 0)
_FIRST: _Order = (-math.inf, "", 0)


@dataclass(frozen=True)
class Claimant:
    """A worker that asks for a job: the models that it serves and those that it has in memory.

    `role` says which phases it does, and `placement` which jobs it leaves to workers of another kind. A
    worker that `is_exact` has unquantized weights. `load_seconds` holds the time that loading each model
    takes, if known.
    """

    models: Collection[str]
    resident_models: Collection[str] = ()
    role: WorkerRole = WorkerRole.ALL
    placement: ClaimingWorker = ANYWHERE
    is_exact: bool = True
    load_seconds: Mapping[str, float] = field(default_factory=dict)

    def having(self, model: str) -> "Claimant":
        """Return the worker as it is for the rest of a claim that has granted it a job of `model`.

        A model that is not resident replaces others in memory, so the rest of the claim is for it only.
        """
        if not self.resident_models or model in self.resident_models:
            return self
        return replace(self, models=(model,), resident_models=(model,))

    def patience_seconds(self, model: str, most: float, config: StoreConfig) -> float:
        """Return how far a job of `model` may be passed over to save a load: at most `most`.

        Avoiding a short load saves little, so the limit is the time of `affinity_loads` loads.
        """
        load_seconds = 0.0 if model in self.resident_models else self.load_seconds.get(model, 0.0)
        return min(most, config.affinity_loads * load_seconds) if load_seconds else most

    def runnable(self, lanes: Iterable[Lane]) -> list[Lane]:
        """Return the lanes whose heads the worker can run and whose tenants may start a job."""
        models, role, is_exact = self.models, self.role, self.is_exact
        phases = tuple(
            is_decode for is_decode in (False, True) if (role.decodes if is_decode else role.denoises)
        )
        return [
            lane
            for lane in lanes
            if lane.model in models
            and lane.is_decode in phases
            and lane.account.may_start
            and (is_exact or not lane.is_exact)
        ]


def choose_lane(lanes: Sequence[Lane], claimant: Claimant, now: float, config: StoreConfig) -> Lane | None:
    """Return the lane whose head this worker gets; `None` if it may have no job that may start."""
    contenders = _contenders(lanes, claimant, now, config)
    if not contenders:
        return None
    fairest = min(contenders, key=_order)
    limit = _overtaking_limit(contenders, claimant, now, config)
    ahead_seconds = claimant.patience_seconds(fairest.model, config.affinity_seconds, config)
    farthest = fairest.vtime + ahead_seconds
    resident = frozenset(claimant.resident_models)
    warm = [
        lane
        for lane in contenders
        if lane.model in resident and _order(lane) <= limit and _is_near(lane, contenders, farthest, config)
    ]
    return min(warm, key=_order, default=fairest)


def farthest_ahead(lanes: Iterable[Lane]) -> float:
    """Return the virtual time beyond which a better band no longer puts a tenant before all others.

    A tenant beyond it is also not served where an engine has room only for jobs that go before its present
    ones, since those would have to wait.
    """
    return min((lane.vtime for lane in lanes), default=math.inf) + BAND_SECONDS


def seconds_left(lanes: Sequence[Lane], claimant: Claimant, now: float, config: StoreConfig) -> float | None:
    """Return the seconds until this worker may take a job that it now leaves to others; `None` if none."""
    ends = [claimant.placement.leaves_until(lane, config) for lane in claimant.runnable(lanes)]
    return min((end - now for end in ends if end > now), default=None)


def _contenders(lanes: Sequence[Lane], claimant: Claimant, now: float, config: StoreConfig) -> Sequence[Lane]:
    """Return the servable lanes of the best rank, and the lanes that they may not overtake."""
    by_rank: dict[int, list[Lane]] = {}
    runnable, placement = claimant.runnable(lanes), claimant.placement
    if placement.leaves_any:
        runnable = [lane for lane in runnable if not placement.leaves(lane, now, config)]
    for lane in runnable:
        by_rank.setdefault(_rank(lane, now, config), []).append(lane)
    if not by_rank:
        return ()
    best = min(by_rank)
    return by_rank[best] + _not_overtaken(by_rank, best)


def _not_overtaken(by_rank: Mapping[int, Sequence[Lane]], best: int) -> list[Lane]:
    """Return the lanes of worse ranks that those of the best rank may not overtake.

    Their tenants are further behind and their band is no worse, as bands age only against better ones and a
    long queue earns nothing; or they are so far behind that bands do not matter.
    """
    first = min(lane.vtime for lane in by_rank[best]) - BAND_SECONDS
    last_of_band = {lane.band.rank: _FIRST for lane in by_rank[best]}
    for lane in by_rank[best]:
        last_of_band[lane.band.rank] = max(last_of_band[lane.band.rank], _order(lane))
    last = [
        max((order for band, order in last_of_band.items() if band >= rank), default=_FIRST)
        for rank in range(len(Band))
    ]
    others = (lane for rank, lanes in by_rank.items() if rank != best for lane in lanes)
    latest = [order[0] for order in last]  # decides nearly always, and is cheaper than comparing whole orders
    return [
        lane
        for lane in others
        if (vtime := lane.vtime) < first
        or (vtime <= latest[lane.band.rank] and _order(lane) < last[lane.band.rank])
    ]


def _rank(lane: Lane, now: float, config: StoreConfig) -> int:
    """Return the band's rank, one better for each `ageing_seconds` that the head has waited."""
    return max(0, lane.band.rank - int((now - lane.head_at) / config.ageing_seconds))


def _order(lane: Lane) -> _Order:
    """Return the sort key of lanes: their tenant's virtual time, then its name and the head's place."""
    return (lane.vtime, lane.account.tenant.id, lane.head_seq)


def _overtaking_limit(
    contenders: Sequence[Lane], claimant: Claimant, now: float, config: StoreConfig
) -> _Order:
    """Return the smallest sort key of the heads that have waited too long to be overtaken."""
    longest = config.affinity_wait_seconds
    overdue = [
        lane
        for lane in contenders
        if now - lane.head_since > claimant.patience_seconds(lane.model, longest, config)
    ]
    return min(map(_order, overdue), default=_BEHIND_ALL)


def _is_near(lane: Lane, contenders: Sequence[Lane], farthest: float, config: StoreConfig) -> bool:
    """Return whether `lane` may overtake others because its model is resident and it would soon be next.

    Its virtual time must not exceed `farthest`, and its head must be few places behind its tenant's first
    job.
    """
    first_seq = min(rival.head_seq for rival in contenders if rival.account is lane.account)
    is_close = lane.head_seq - first_seq <= config.affinity_lookahead
    return lane.vtime <= farthest and is_close
