"""Tenants, the plans that limit them, and the API keys that identify them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from diffuserve.domain.job import Band


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Limits and share of a tenant; a limit that is `None` is none.

    Tenants that wait at the same time share the device-seconds in proportion to their `weight`.
    `max_queued_seconds` bounds the predicted device-seconds of a tenant's queued jobs,
    `requests_per_second` its requests that make work, and `reads_per_second` all others. `max_waits` bounds
    the streams and waits that it has open at one control plane. `default_band` is the band of a job that
    names none, and `highest_band` the best one that a job may name.
    """

    name: str
    weight: float = 1.0
    max_running: int = 8
    max_queued: int = 1_000
    max_queued_seconds: float | None = None
    requests_per_second: float | None = None
    reads_per_second: float | None = 300.0
    max_waits: int | None = 1_000
    default_band: Band = Band.STANDARD
    highest_band: Band = Band.STANDARD

    def allows(self, band: Band) -> bool:
        """Return whether a job may name this band."""
        return band.rank >= self.highest_band.rank


FREE = Plan(
    name="free",
    weight=1,
    max_running=2,
    max_queued=100,
    max_queued_seconds=3_600,
    requests_per_second=10,
    reads_per_second=30,
    max_waits=100,
)
STANDARD = Plan(
    name="standard",
    weight=4,
    max_running=16,
    max_queued=1_000,
    max_queued_seconds=86_400,
    requests_per_second=100,
    reads_per_second=300,
    max_waits=2_000,
    highest_band=Band.INTERACTIVE,
)
PRO = Plan(
    name="pro",
    weight=16,
    max_running=64,
    max_queued=100_000,
    requests_per_second=1_000,
    reads_per_second=3_000,
    max_waits=10_000,
    default_band=Band.INTERACTIVE,
    highest_band=Band.INTERACTIVE,
)
DEFAULT_PLANS: Mapping[str, Plan] = {plan.name: plan for plan in (FREE, STANDARD, PRO)}


@dataclass(frozen=True, kw_only=True)
class PlanOverrides:
    """Limits of one tenant that differ from its plan's; `None` keeps the plan's own."""

    weight: float | None = None
    max_running: int | None = None
    max_queued: int | None = None

    def apply(self, plan: Plan) -> Plan:
        """Return the plan with these limits."""
        changes = {name: value for name, value in vars(self).items() if value is not None}
        return replace(plan, **changes) if changes else plan


@dataclass(frozen=True)
class Tenant:
    """A customer or team whose jobs share one queue; its own overrides are applied to `plan`."""

    id: str
    plan: Plan


class Role(StrEnum):
    """Rights of an API key: a tenant's own jobs, everything, or the routes of workers only."""

    TENANT = "tenant"
    OPERATOR = "operator"
    WORKER = "worker"


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """An API key without its secret, of which only a hash is stored. Times are seconds since the epoch.

    Keys of operators and workers may have no `tenant_id`.
    """

    id: str
    role: Role
    tenant_id: str | None
    created_at: float
    revoked_at: float | None = None
