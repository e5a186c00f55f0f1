"""Lanes of ready jobs, their tenants' accounts, and the places of jobs within their lane.

A place is that of the submission, or before all of these by what a deadline leaves.
"""

from dataclasses import dataclass

from diffuserve.domain.jobs.job import Band
from diffuserve.domain.tenant import Tenant

_PLACES = 2**31  # that a tenant's jobs can have, and seconds that deadlines are told apart by
_EPOCH = 1_700_000_000  # of these seconds


@dataclass
class TenantAccount:
    """A tenant's virtual time and its running jobs, owned by the transaction that serves claims.

    `running_seconds` is the sum of device-seconds that the running jobs were charged in advance.
    """

    tenant: Tenant
    vtime: float
    num_running: int
    running_seconds: float = 0.0

    @property
    def may_start(self) -> bool:
        """True while the tenant is below its limit of running jobs."""
        return self.num_running < self.tenant.plan.max_running

    def charge(self, seconds: float) -> None:
        """Start a job that is predicted to take so many device-seconds."""
        self.vtime += seconds / self.tenant.plan.weight
        self.num_running += 1
        self.running_seconds += seconds


@dataclass
class Lane:
    """The ready jobs of one band, tenant, model and phase; scheduling looks only at the first, the head.

    Jobs of a lane that `is_decode` start from finished latents, and jobs of a lane that `is_exact` need
    unquantized weights. `head_seq` is the head's place in its tenant's queue, `head_at` the time of its
    submission, and `head_since` the time at which it became the head. `head_adapters` are the digests of the
    adapters that it needs, separated by spaces, and `head_hint` what its worker is chosen by. The `handicap`
    is the credit that its tenant does not get for having been idle on this model.
    """

    key: str
    band: Band
    account: TenantAccount
    model: str
    head_seq: int
    head_at: float
    head_since: float
    is_decode: bool = False
    is_exact: bool = False
    head_adapters: str = ""
    head_hint: str = ""
    handicap: float = 0.0

    @property
    def vtime(self) -> float:
        """The tenant's virtual time on this model."""
        return self.account.vtime + self.handicap

    @property
    def settled_vtime(self) -> float:
        """The virtual time without the advance charges of running jobs, which may be refunded."""
        return self.vtime - self.account.running_seconds / self.account.tenant.plan.weight

    @property
    def is_urgent(self) -> bool:
        """True while the head is close to its deadline, which puts it before all others of its lane."""
        return self.head_seq < 0


def urgent_place(seq: int, latest_start: float) -> int:
    """Return the place of a job that is close to its deadline, below every place that a job has by itself.

    It is unique, since no two jobs of a lane share a `seq`.
    """
    second = min(max(int(latest_start) - _EPOCH, 0), _PLACES - 1)
    return second * _PLACES + seq - _PLACES * _PLACES


def latest_start_at(place: int) -> float | None:
    """Return the latest start, in whole seconds, of a job at such a place; `None` at any other."""
    return None if place >= 0 else float((place + _PLACES * _PLACES) // _PLACES + _EPOCH)
