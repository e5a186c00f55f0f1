"""The choice between workers that may run a ready job: a pure function.

A spot worker costs a fraction, and may be taken away. So interactive jobs are left to on-demand workers, and
batch jobs to spot workers. Each job is left to them for a bounded time only; after that it goes to the first
worker that asks, so that no job starves and no worker stays idle beside an old queue. In the same way a
worker that would have to load a model leaves the model's jobs, for a moment, to workers that have it in
memory; and one that would have to load a job's adapters, to those that have more of them. A job with a hint
is left to the one worker that all jobs with this hint prefer.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from diffuserve.domain.jobs.job import Band
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.policy.lanes import Lane, latest_start_at


@dataclass(frozen=True)
class ClaimingWorker:
    """A worker that claims, on a spot machine or not.

    `others` holds what workers of the other kind serve, as pairs of a model's name and whether they decode
    it. `resident_elsewhere` are the models that this worker would have to load and that other workers have in
    memory. `own_adapters` are the digests of the adapters that it has in memory, and `adapters_elsewhere`
    those of each of the other workers, by model. `worker_id` is the worker's own, and `peers` are all workers
    that may be hinted at, this one included, by model.
    """

    is_spot: bool
    others: Collection[tuple[str, bool]] = ()
    resident_elsewhere: Collection[str] = ()
    own_adapters: Collection[str] = ()
    adapters_elsewhere: Mapping[str, Sequence[Collection[str]]] = field(default_factory=dict)
    worker_id: str = ""
    peers: Mapping[str, Collection[str]] = field(default_factory=dict)

    def leaves(self, lane: Lane, now: float, config: StoreConfig) -> bool:
        """Return whether this worker leaves a lane's head to others that suit it better."""
        return now < self.leaves_until(lane, config)

    def leaves_until(self, lane: Lane, config: StoreConfig) -> float:
        """Return until when this worker leaves a lane's head to others; minus infinity if it does not."""
        suited, until = suits_spot(lane), -math.inf
        if lane.model in self.resident_elsewhere or self._others_have_more(lane):
            until = lane.head_at + config.resident_wait_seconds
        if lane.head_hint and self._is_hinted_elsewhere(lane):
            until = max(until, lane.head_at + config.hint_wait_seconds)
        is_of_other_kind = suited is not None and suited is not self.is_spot
        if is_of_other_kind and (lane.model, lane.is_decode) in self.others:
            until = max(until, left_until(lane, config))
        return until

    def _is_hinted_elsewhere(self, lane: Lane) -> bool:
        return favorite(lane.head_hint, self.peers.get(lane.model, ())) not in ("", self.worker_id)

    def _others_have_more(self, lane: Lane) -> bool:
        """Return whether another worker has more of a head's adapters in memory than this one."""
        if not lane.head_adapters:
            return False
        wanted, elsewhere = lane.head_adapters.split(), self.adapters_elsewhere.get(lane.model, ())
        most = max((_num_had(wanted, had) for had in elsewhere), default=0)
        return most > _num_had(wanted, self.own_adapters)

    @property
    def leaves_any(self) -> bool:
        """Return whether there can be jobs that this worker leaves to others."""
        return bool(self.others or self.resident_elsewhere or self.adapters_elsewhere or self.peers)


ANYWHERE = ClaimingWorker(is_spot=False)
"""Placement where there are workers of one kind only."""


def favorite(hint: str, worker_ids: Collection[str]) -> str:
    """Return the worker that jobs with a hint prefer; "" if there is none.

    It is that of the highest hash of hint and worker (Thaler and Ravishankar, 1998): who joins or leaves
    changes the favorite of few hints.
    """
    return max(worker_ids, key=lambda worker_id: sha256(f"{hint}|{worker_id}".encode()).digest(), default="")


def _num_had(wanted: Sequence[str], had: Collection[str]) -> int:
    return sum(digest in had for digest in wanted)


def suits_spot(lane: Lane) -> bool | None:
    """Return whether a lane's head should run on a spot worker; `None` if it does not matter.

    A job close to its deadline should run on an on-demand worker, whatever its band.
    """
    if lane.band is Band.INTERACTIVE or lane.is_urgent:
        return False
    return True if lane.band is Band.BATCH else None


def left_until(lane: Lane, config: StoreConfig) -> float:
    """Return until when a lane's head is left to the kind of worker that suits it."""
    if suits_spot(lane):
        return lane.head_at + config.spot_wait_seconds
    latest = latest_start_at(lane.head_seq)
    urgent_since = lane.head_at if latest is None else latest - config.deadline_lead_seconds
    return max(lane.head_at, urgent_since) + config.on_demand_wait_seconds
