"""Gauges of the store's state, read once for all scrapes that come together."""

import asyncio
from collections import Counter

from diffuserve.api.operators.shares import fair_share_error
from diffuserve.domain.errors import ServerUnavailable
from diffuserve.domain.jobs.job import Band
from diffuserve.domain.workers.machines import MachineKind
from diffuserve.events.base import EventBus
from diffuserve.jobs.reads.overview import Overview
from diffuserve.jobs.reads.shared_reads import FreshReads
from diffuserve.jobs.store import JobStore
from diffuserve.storage.watch import StorageWatch
from diffuserve.telemetry.metrics import ControlMetrics
from diffuserve.telemetry.store_series import QueueGauges

_PAUSE_SECONDS = 0.5  # between two reads, for any number of scrapers
_DATABASE_SECONDS = 0.3  # limit of a read, so that a scrape does not wait for an unavailable database


class StoreGauges:
    """Reads the queue and the workers into the metrics, and renders these off the event loop.

    While the database is away the metrics of this process are rendered alone, and at once.
    """

    def __init__(
        self, store: JobStore, bus: EventBus, storage: StorageWatch, metrics: ControlMetrics
    ) -> None:
        self._store, self._bus, self._storage = store, bus, storage
        self._metrics = metrics
        self._texts = FreshReads(self._read, _PAUSE_SECONDS)

    async def text(self) -> bytes:
        """Return all metrics as they are now, the same for all that ask together."""
        return await self._texts.get()

    async def _read(self) -> bytes:
        metrics = self._metrics
        metrics.set_bus(self._bus.is_connected, self._bus.num_dropped)
        metrics.store_up.set(self._storage.is_up)
        operations = self._store.operations
        is_up = await operations.responds(_DATABASE_SECONDS) and await self._read_store()
        metrics.database_up.set(is_up)
        metrics.database_writable.set(is_up and await operations.takes_writes(_DATABASE_SECONDS))
        return await asyncio.to_thread(metrics.text, is_up)

    async def _read_store(self) -> bool:
        """Read what is in the database; return whether that could be done."""
        metrics = self._metrics
        try:
            overview = await self._store.overview.read()
            metrics.webhook_backlog.set(await self._store.webhooks.num_waiting())
        except ServerUnavailable:
            return False
        metrics.set_queue(_ready(overview), {model for worker in overview.workers for model in worker.models})
        metrics.fair_share_error.set(fair_share_error(overview))
        metrics.leases.set(len(overview.running))
        metrics.set_workers(
            Counter((worker.state, MachineKind.of(worker.is_spot)) for worker in overview.workers)
        )
        return True


def _ready(overview: Overview) -> dict[tuple[str, Band], QueueGauges]:
    return {
        (pool.model, pool.band): QueueGauges(
            pool.num_ready, pool.work_seconds, max(overview.now - pool.oldest_at, 0.0)
        )
        for pool in overview.pools
    }
