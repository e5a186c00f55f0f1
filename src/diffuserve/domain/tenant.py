"""Who asks, what they may ask for, and the keys they show."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from diffuserve.domain.job import Band


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a tenant gets. `weight` is its share of device-seconds when all want some.

    `max_queued_seconds` bounds the predicted device-seconds of its queued jobs, `requests_per_second`
    its calls that make work; `None` bounds nothing.
    """

    name: str
    weight: float = 1.0
    max_running: int = 8
    max_queued: int = 1_000
    max_queued_seconds: float | None = None
    requests_per_second: float | None = None
    default_band: Band = Band.STANDARD
    highest_band: Band = Band.STANDARD

    def allows(self, band: Band) -> bool:
        return band.rank >= self.highest_band.rank


FREE = Plan(
    name="free",
    weight=1,
    max_running=2,
    max_queued=100,
    max_queued_seconds=3_600,
    requests_per_second=10,
)
STANDARD = Plan(
    name="standard",
    weight=4,
    max_running=16,
    max_queued=1_000,
    max_queued_seconds=86_400,
    requests_per_second=100,
    highest_band=Band.INTERACTIVE,
)
PRO = Plan(
    name="pro",
    weight=16,
    max_running=64,
    max_queued=100_000,
    requests_per_second=1_000,
    default_band=Band.INTERACTIVE,
    highest_band=Band.INTERACTIVE,
)
DEFAULT_PLANS: Mapping[str, Plan] = {plan.name: plan for plan in (FREE, STANDARD, PRO)}


@dataclass(frozen=True, kw_only=True)
class PlanOverrides:
    """What one tenant has apart from its plan; `None` means "as the plan says"."""

    weight: float | None = None
    max_running: int | None = None
    max_queued: int | None = None

    def apply(self, plan: Plan) -> Plan:
        changes = {name: value for name, value in vars(self).items() if value is not None}
        return replace(plan, **changes) if changes else plan


@dataclass(frozen=True)
class Tenant:
    """Somebody who submits jobs; `plan` has the tenant's own overrides applied."""

    id: str
    plan: Plan


class Role(StrEnum):
    """What a key opens: a tenant's own jobs, everything, or the workers' routes alone."""

    TENANT = "tenant"
    OPERATOR = "operator"
    WORKER = "worker"


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """A key without its secret, which is stored as a hash only."""

    id: str
    role: Role
    tenant_id: str | None
    created_at: float
    revoked_at: float | None = None
