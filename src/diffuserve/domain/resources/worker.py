"""Workers as operators see them. Times are RFC 3339 strings."""

from collections.abc import Mapping
from dataclasses import dataclass

from diffuserve.domain.resource_base import Resource
from diffuserve.domain.workers.worker import WorkerReport, WorkerRole, WorkerState


@dataclass(frozen=True, kw_only=True)
class WorkerReportResource(WorkerReport, Resource):
    """Latest report of a worker."""


@dataclass(frozen=True, kw_only=True)
class WorkerResource(Resource):
    """Registered worker; `price_per_hour` is in the currency of its operator."""

    id: str
    name: str
    state: WorkerState
    labels: Mapping[str, str]
    models: tuple[str, ...]
    report: WorkerReportResource
    registered_at: str
    heartbeat_at: str
    is_draining: bool
    price_per_hour: float | None
    is_spot: bool
    num_leases: int
    role: WorkerRole = WorkerRole.ALL


@dataclass(frozen=True, kw_only=True)
class WorkerList(Resource):
    """Workers, including lost ones."""

    data: tuple[WorkerResource, ...]
