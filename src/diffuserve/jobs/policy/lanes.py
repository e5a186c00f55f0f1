"""Lanes of ready jobs, and the accounts of their tenants, as the choices among them see them."""

from dataclasses import dataclass

from diffuserve.domain.jobs.job import Band
from diffuserve.domain.tenant import Tenant


@dataclass
class TenantAccount:
    """A tenant's virtual time and its running jobs, owned by the transaction that serves claims.

    `running_seconds` are the device-seconds that these jobs were charged, in advance.
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
    """The ready jobs of one band, tenant, model and phase, of which a choice needs only the first: the head.

    Jobs of a lane that `is_decode` start from finished latents, and those of one that `is_exact` are drawn
    with weights that are not quantized. `head_seq` is the head's place in its tenant's queue, `head_at` the
    time of its submission, and `head_since` when it became the head. The `handicap` is the credit that its
    tenant does not get for having been idle on this model.
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
    handicap: float = 0.0

    @property
    def vtime(self) -> float:
        """The tenant's virtual time on this model."""
        return self.account.vtime + self.handicap

    @property
    def settled_vtime(self) -> float:
        """The same without what running jobs were charged in advance, and may be given back."""
        return self.vtime - self.account.running_seconds / self.account.tenant.plan.weight

    @property
    def is_urgent(self) -> bool:
        """True while the head is close to its deadline, which gives it a place of its own."""
        return self.head_seq < 0
