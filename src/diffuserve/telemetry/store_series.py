"""The metrics that a control plane reads from the database, which every replica tells alike."""

from collections.abc import Iterable, Mapping
from itertools import product
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Gauge

from diffuserve.domain.jobs.job import Band
from diffuserve.domain.workers.machines import MachineKind
from diffuserve.domain.workers.worker import WorkerState


class QueueGauges(NamedTuple):
    """Ready jobs of a pool and a band, their predicted device-seconds, and the longest wait among them."""

    num_ready: int = 0
    work_seconds: float = 0.0
    oldest_seconds: float = 0.0


class StoreSeries:
    """Gauges in a registry of their own, since they are left out while the database is away."""

    def __init__(self) -> None:
        self.store_registry = registry = CollectorRegistry()
        self.queue_size = Gauge("diffusion_queue_size", "Ready jobs.", ["pool", "band"], registry=registry)
        self.queue_work = Gauge(
            "diffusion_queue_work_seconds",
            "Predicted device-seconds of ready jobs.",
            ["pool", "band"],
            registry=registry,
        )
        self.oldest_seconds = Gauge(
            "diffusion_queue_oldest_seconds",
            "Time since the submission of the ready job that waits longest; 0 without one.",
            ["pool", "band"],
            registry=registry,
        )
        self.fair_share_error = Gauge(
            "diffusion_fair_share_error",
            "Part of the device-seconds of tenants with ready jobs that went to others of them than is fair.",
            registry=registry,
        )
        self.leases = Gauge("diffusion_leases", "Jobs that workers hold.", registry=registry)
        self.workers = Gauge(
            "diffusion_workers",
            "Workers by state and kind of machine.",
            ["state", "kind"],
            registry=registry,
        )
        self.webhook_backlog = Gauge(
            "diffusion_webhook_backlog", "Webhooks that are not delivered yet.", registry=registry
        )
        self._pools: set[str] = set()

    def set_queue(self, ready: Mapping[tuple[str, Band], QueueGauges], pools: Iterable[str] = ()) -> None:
        """Set the queue's gauges by pool and band. `pools` are others than those with ready jobs.

        A pool that was seen once keeps its series, which are 0 while it has no job.
        """
        self._pools |= {pool for pool, _ in ready} | set(pools)
        for pool, band in product(self._pools, Band):
            state = ready.get((pool, band), QueueGauges())
            self.queue_size.labels(pool, band).set(state.num_ready)
            self.queue_work.labels(pool, band).set(state.work_seconds)
            self.oldest_seconds.labels(pool, band).set(state.oldest_seconds)

    def set_workers(self, counts: Mapping[tuple[WorkerState, MachineKind], int]) -> None:
        """Set the number of workers by state and kind of machine; those without a count have 0."""
        for state in WorkerState:
            for kind in MachineKind:
                self.workers.labels(state, kind).set(counts.get((state, kind), 0))
