"""Gauges of the store's state, read once for all scrapes that come together."""

import asyncio
from collections import Counter

from diffuserve.api.overview.shares import fair_share_error
from diffuserve.domain.job import Band
from diffuserve.domain.machines import MachineKind
from diffuserve.events.base import EventBus
from diffuserve.jobs.overview import Overview
from diffuserve.jobs.shared_reads import FreshReads
from diffuserve.jobs.store import JobStore
from diffuserve.telemetry.metrics import ControlMetrics, QueueGauges

_PAUSE_SECONDS = 0.5  # between two reads, however many scrape


class StoreGauges:
    """Reads the queue and the workers into the metrics, and renders these off the event loop."""

    def __init__(self, store: JobStore, bus: EventBus, metrics: ControlMetrics) -> None:
        self._store = store
        self._bus = bus
        self._metrics = metrics
        self._texts = FreshReads(self._read, _PAUSE_SECONDS)

    async def text(self) -> bytes:
        """Return all metrics as they are now, the same for all that ask together."""
        return await self._texts.get()

    async def _read(self) -> bytes:
        metrics, overview = self._metrics, await self._store.overview.read()
        metrics.set_queue(_ready(overview), {model for worker in overview.workers for model in worker.models})
        metrics.fair_share_error.set(fair_share_error(overview))
        metrics.leases.set(len(overview.running))
        metrics.set_workers(
            Counter((worker.state, MachineKind.of(worker.is_spot)) for worker in overview.workers)
        )
        metrics.set_bus(self._bus.is_connected, self._bus.num_dropped)
        metrics.webhook_backlog.set(await self._store.webhooks.num_waiting())
        return await asyncio.to_thread(metrics.text)


def _ready(overview: Overview) -> dict[tuple[str, Band], QueueGauges]:
    return {
        (pool.model, pool.band): QueueGauges(
            pool.num_ready, pool.work_seconds, max(overview.now - pool.oldest_at, 0.0)
        )
        for pool in overview.pools
    }
