"""Tenants, the plans that limit them, and the API keys that identify them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.jobs.job import Band
from diffuserve.domain.jobs.job_options import JOB_OPTIONS

DEFAULT_TENANT = "default"
"""Tenant of everyone on a server that requires no keys."""
OPERATOR_TENANT = "operator"
"""Tenant of the jobs that operators submit."""
GIB = 1 << 30
KEY_ID_LENGTH = 12
"""Characters of the id of a key that replaces no other; a successor's id begins with them."""
RESERVED_TENANTS = frozenset({DEFAULT_TENANT, OPERATOR_TENANT})


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Limits and share of a tenant; a limit that is `None` is none.

    Tenants that wait at the same time share the device-seconds in proportion to their `weight`.
    `max_queued_seconds` bounds the predicted device-seconds of a tenant's queued jobs,
    `requests_per_second` its requests that make work, and `reads_per_second` all others. `max_waits` bounds
    the streams and waits that it has open at one control plane, `max_files` the images that it has uploaded,
    and `max_files_bytes` all of them together; `max_adapters` and `max_adapters_bytes` do so for adapters.
    `input_pixels_per_minute` bounds the images that are read for
    it. `default_band` is the band of a job that names none, and `highest_band` the best one that a job may
    name. `job_options` are those of `JobOptions` that a job may name.
    """

    name: str
    weight: float = 1.0
    max_running: int = 8
    max_queued: int = 1_000
    max_queued_seconds: float | None = None
    requests_per_second: float | None = None
    reads_per_second: float | None = 300.0
    max_waits: int | None = 1_000
    max_files: int | None = 1_000
    max_files_bytes: int | None = 5 * GIB
    max_adapters: int | None = 100
    max_adapters_bytes: int | None = 20 * GIB
    input_pixels_per_minute: float | None = 1_500_000_000
    default_band: Band = Band.STANDARD
    highest_band: Band = Band.STANDARD
    job_options: tuple[str, ...] = tuple(JOB_OPTIONS)

    def allows(self, band: Band) -> bool:
        """Return whether a job may name this band."""
        return band.rank >= self.highest_band.rank

    def check(self) -> None:
        """Raise `ValueError` for limits that let nothing through, or a default band above the highest."""
        if not self.weight > 0 or self.max_running < 1 or self.max_queued < 1:
            raise ValueError(f"plan {self.name}: weight, max_running and max_queued must be positive")
        limits = (self.max_queued_seconds, self.requests_per_second, self.reads_per_second, self.max_waits)
        files = (self.max_files, self.max_files_bytes, self.max_adapters, self.max_adapters_bytes)
        for limit in (*limits, *files, self.input_pixels_per_minute):
            if limit is not None and not 0 < limit < math.inf:
                raise ValueError(f"plan {self.name}: a limit must be positive, or null for none")
        if unknown := set(self.job_options) - set(JOB_OPTIONS):
            known = ", ".join(JOB_OPTIONS)
            raise ValueError(
                f"plan {self.name}: job_options: {', '.join(sorted(unknown))}: known are {known}"
            )
        if not self.allows(self.default_band):
            raise ValueError(f"plan {self.name}: its default_band is above its highest_band")


FREE = Plan(
    name="free",
    weight=1,
    max_running=2,
    max_queued=100,
    max_queued_seconds=3_600,
    requests_per_second=10,
    reads_per_second=30,
    max_waits=100,
    max_files=100,
    max_files_bytes=GIB,
    max_adapters=10,
    max_adapters_bytes=2 * GIB,
    input_pixels_per_minute=300_000_000,
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
    max_waits=3_000,
    max_files=10_000,
    max_files_bytes=50 * GIB,
    max_adapters=1_000,
    max_adapters_bytes=200 * GIB,
    input_pixels_per_minute=6_000_000_000,
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


def family_of(key_id: str) -> str:
    """Return what the id of a key has in common with those of its successors: its first characters."""
    return key_id[:KEY_ID_LENGTH]


def check_tenant_name(name: str) -> None:
    """Raise `InvalidParams` for a name that no tenant of a new key may have."""
    if name.strip().casefold() in RESERVED_TENANTS:
        raise InvalidParams(
            "tenant",
            name,
            "is reserved for operators and for servers without keys; choose another name, and read the jobs "
            "of this one with an operator's key",
        )


class Role(StrEnum):
    """Rights of a key: own jobs; all jobs and the workers; only the routes of workers; only the metrics."""

    TENANT = "tenant"
    OPERATOR = "operator"
    WORKER = "worker"
    MONITOR = "monitor"


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """An API key without its secret, of which only a hash is stored. Times are seconds since the epoch.

    A key that was replaced has a `revoked_at` in the future, until which it is valid.

    Only the keys of tenants have a `tenant_id`.
    """

    id: str
    role: Role
    tenant_id: str | None
    created_at: float
    revoked_at: float | None = None
