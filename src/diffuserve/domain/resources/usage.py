"""Use of the devices by day, and what it cost.

Costs are in the operator's currency, by the price of an hour that workers stated when they registered; one
without a price costs nothing. Days are UTC's, and an attempt belongs to the day on which it ended.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from diffuserve.domain.resource_base import Resource
from diffuserve.domain.workers.machines import MachineKind


class UsageField(StrEnum):
    """Field by which use is told apart."""

    DAY = "day"
    TENANT_ID = "tenant_id"
    MODEL = "model"
    KIND = "kind"
    OUTCOME = "outcome"


@dataclass(frozen=True, kw_only=True)
class AmountResource(Resource):
    """Device-seconds and their cost."""

    seconds: float
    cost: float


@dataclass(frozen=True, kw_only=True)
class UsageRowResource(AmountResource):
    """Attempts that have in common what is not null, and the images and clips of those that succeeded.

    `outcome` is the job's status after the attempt: `succeeded`, `failed`, `canceled`; `denoised` if another
    worker decodes what it left, `queued` if another attempt follows, `preempted` if it made room, `lost` if
    its worker vanished.
    """

    day: str | None = None
    tenant_id: str | None = None
    model: str | None = None
    kind: MachineKind | None = None
    outcome: str | None = None
    num_attempts: int
    num_images: int


@dataclass(frozen=True, kw_only=True)
class WorkerTimeResource(AmountResource):
    """Time for which workers of a kind were registered, from each one's registration to its last message."""

    kind: MachineKind


@dataclass(frozen=True, kw_only=True)
class RunTimesResource(Resource):
    """Seconds from first lease to end that 95 of 100 jobs of a model did not exceed."""

    model: str
    num_jobs: int
    p95: float


@dataclass(frozen=True, kw_only=True)
class FleetUsageResource(Resource):
    """Time of all workers. What useful attempts did not take of it is `overhead`."""

    machines: tuple[WorkerTimeResource, ...]
    overhead: AmountResource
    run_times: tuple[RunTimesResource, ...] = field(
        metadata={"description": "Of the last 2,000 jobs that succeeded within the days, by model."}
    )


@dataclass(frozen=True, kw_only=True)
class UsageResource(Resource):
    """Use from the day `since` to the day `until`, both included.

    `useful` are the attempts of all `data` that succeeded or left finished latents.
    """

    since: str
    until: str
    group_by: tuple[UsageField, ...]
    data: tuple[UsageRowResource, ...]
    useful: AmountResource
    fleet: FleetUsageResource | None = field(metadata={"description": "For operators; null for tenants."})
