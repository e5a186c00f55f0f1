"""The metrics of the queue and of workers, read from a store of a large service."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

from diffuserve.api.operators.store_gauges import StoreGauges
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.store import JobStore
from diffuserve.storage.local import LocalArtifactStore
from diffuserve.storage.watch import StorageWatch
from diffuserve.telemetry.metrics import ControlMetrics
from support.store_driver import add_worker, new_job
from support.waiting import HANG_SECONDS

MAX_SECONDS = 0.05 * 4  # of this thread's processor; four times what is promised, for slow machines


class RecordingMetrics(ControlMetrics):
    """Metrics that note which thread rendered them, and the processor time that this took."""

    thread: threading.Thread | None = None
    seconds = 0.0

    def text(self, with_store: bool = True) -> bytes:
        begin = time.thread_time()
        text = super().text(with_store)
        self.thread, self.seconds = threading.current_thread(), time.thread_time() - begin
        return text


def gauges_of(store: JobStore, metrics: ControlMetrics, folder: Path) -> StoreGauges:
    return StoreGauges(store, MemoryEventBus(), StorageWatch(LocalArtifactStore(folder)), metrics)


async def test_100_workers_and_200_tenants_are_rendered_quickly_and_off_the_event_loop(
    job_store: JobStore, tmp_path: Path
) -> None:
    await asyncio.gather(*(add_worker(job_store, "tiny", name=f"w{number}") for number in range(100)))
    await asyncio.gather(*(job_store.jobs.submit(new_job(f"tenant-{number}")) for number in range(200)))
    metrics = RecordingMetrics()
    lines = (await gauges_of(job_store, metrics, tmp_path).text()).decode().splitlines()
    assert 'diffusion_queue_size{band="standard",pool="tiny"} 200.0' in lines
    assert 'diffusion_workers{kind="on_demand",state="ready"} 100.0' in lines
    assert not [line for line in lines if "tenant-" in line]
    assert metrics.thread not in (None, threading.main_thread())
    assert metrics.seconds < MAX_SECONDS


async def test_without_the_database_the_metrics_of_the_process_are_told_and_no_others(
    job_store: JobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_worker(job_store)
    gauges = gauges_of(job_store, ControlMetrics(), tmp_path)
    before = (await gauges.text()).decode()
    assert "diffusion_database_up 1.0" in before
    assert "diffusion_store_up 1.0" in before

    async def hang(_work: object) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as away:
        away.setattr(job_store.database, "look", hang)
        async with asyncio.timeout(HANG_SECONDS):
            without = (await gauges.text()).decode()
    assert "diffusion_database_up 0.0" in without
    assert "diffusion_event_bus_connected 1.0" in without
    assert "diffusion_workers" not in without
    assert (await gauges.text()).decode() == before
