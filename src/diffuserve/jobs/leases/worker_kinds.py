"""The placements of workers, as a transaction that grants leases sees them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import orjson
import sqlalchemy as sa

from diffuserve.domain.workers.worker import WorkerReport, WorkerRole
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.policy.lanes import Lane
from diffuserve.jobs.policy.placement import ClaimingWorker, suits_spot
from diffuserve.jobs.workers.reports import report_of

workers = schema.workers


@dataclass
class Placements:
    """The placements of the workers that claim in one transaction, looked up when they are first needed."""

    transaction: Transaction
    lanes: Sequence[Lane]
    _by_kind: dict[bool, ClaimingWorker] = field(default_factory=dict)

    def of(self, worker_id: str, is_spot: bool, cold: frozenset[str]) -> ClaimingWorker:
        """Return the placement of a worker, which would have to load the `cold` ones of its models."""
        placement = self._of_kind(is_spot)
        if any(lane.head_adapters for lane in self.lanes):
            placement = replace(
                placement,
                own_adapters=self._adapters.get(worker_id, frozenset()),
                adapters_elsewhere=self._adapters_beside(worker_id),
            )
        if any(lane.head_hint for lane in self.lanes):
            placement = replace(placement, worker_id=worker_id, peers=self._hinted)
        if not any(lane.model in cold for lane in self.lanes):
            return placement
        elsewhere = {model for model in cold if self._holders.get(model, frozenset()) - {worker_id}}
        return replace(placement, resident_elsewhere=frozenset(elsewhere))

    def _of_kind(self, is_spot: bool) -> ClaimingWorker:
        if is_spot not in self._by_kind:
            is_any = any(suits_spot(lane) is (not is_spot) for lane in self.lanes)
            others = phases_served(self.transaction, not is_spot) if is_any else frozenset()
            self._by_kind[is_spot] = ClaimingWorker(is_spot, others)
        return self._by_kind[is_spot]

    @cached_property
    def _holders(self) -> Mapping[str, frozenset[str]]:
        """The live workers that have a model in memory, by model."""
        holders: dict[str, set[str]] = defaultdict(set)
        for worker_id, (report, _) in self._reports.items():
            for model in report.resident_models:
                holders[model].add(worker_id)
        return {model: frozenset(ids) for model, ids in holders.items()}

    @cached_property
    def _adapters(self) -> Mapping[str, frozenset[str]]:
        """The adapters in memory, by live worker that has any."""
        reports = ((worker_id, report) for worker_id, (report, _) in self._reports.items())
        return {
            worker_id: frozenset(report.resident_adapters)
            for worker_id, report in reports
            if report.resident_adapters
        }

    def _adapters_beside(self, worker_id: str) -> Mapping[str, list[frozenset[str]]]:
        """Return the adapters of each other worker that has any, by the models that it serves."""
        found: dict[str, list[frozenset[str]]] = defaultdict(list)
        for other, adapters in self._adapters.items():
            if other != worker_id:
                for model in self._reports[other][1]:
                    found[model].append(adapters)
        return found

    @cached_property
    def _hinted(self) -> Mapping[str, list[str]]:
        """The live workers that start jobs, by model."""
        found: dict[str, list[str]] = defaultdict(list)
        columns = (workers.c.id, workers.c.models, workers.c.role)
        for row in self.transaction.rows(sa.select(*columns).where(_live(self.transaction))):
            for model in orjson.loads(row.models) if WorkerRole(row.role).denoises else ():
                found[model].append(row.id)
        return found

    @cached_property
    def _reports(self) -> Mapping[str, tuple[WorkerReport, Sequence[str]]]:
        """The reports of live workers, with the models that they serve."""
        columns = (workers.c.id, workers.c.report, workers.c.models)
        rows = self.transaction.rows(sa.select(*columns).where(_live(self.transaction)))
        return {row.id: (report_of(row.report), orjson.loads(row.models)) for row in rows}


def phases_served(transaction: Transaction, is_spot: bool) -> frozenset[tuple[str, bool]]:
    """Return what live workers of a kind do: the names of their models, and whether they decode them."""
    live = sa.and_(_live(transaction), workers.c.is_spot.is_(is_spot))
    kinds = sa.select(workers.c.models, workers.c.role).where(live).distinct()
    served = set()
    for row in transaction.rows(kinds):
        role = WorkerRole(row.role)
        does = {False: role.denoises, True: role.decodes}
        served |= {(model, phase) for model in orjson.loads(row.models) for phase in does if does[phase]}
    return frozenset(served)


def _live(transaction: Transaction) -> sa.ColumnElement[bool]:
    since = transaction.now - transaction.config.lease_seconds
    return sa.and_(workers.c.heartbeat_at >= since, workers.c.is_draining.is_(False))
