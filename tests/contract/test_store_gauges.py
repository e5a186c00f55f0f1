"""The metrics of the queue and of workers, read from a store of a large service."""

import asyncio
import threading
import time

from diffuserve.api.store_gauges import StoreGauges
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.store import JobStore
from diffuserve.telemetry.metrics import ControlMetrics
from support.store_driver import add_worker, new_job

MOST_SECONDS = 0.05 * 4  # of this thread's processor; four times what is promised, for slow machines


class RecordingMetrics(ControlMetrics):
    """Metrics that note which thread rendered them, and the processor time that this took."""

    thread: threading.Thread | None = None
    seconds = 0.0

    def text(self) -> bytes:
        begin = time.thread_time()
        text = super().text()
        self.thread, self.seconds = threading.current_thread(), time.thread_time() - begin
        return text


async def test_100_workers_and_200_tenants_are_rendered_quickly_and_off_the_event_loop(
    job_store: JobStore,
) -> None:
    await asyncio.gather(*(add_worker(job_store, "tiny", name=f"w{number}") for number in range(100)))
    await asyncio.gather(*(job_store.jobs.submit(new_job(f"tenant-{number}")) for number in range(200)))
    metrics = RecordingMetrics()
    lines = (await StoreGauges(job_store, MemoryEventBus(), metrics).text()).decode().splitlines()
    assert 'diffusion_queue_size{band="standard",pool="tiny"} 200.0' in lines
    assert 'diffusion_workers{kind="on_demand",state="ready"} 100.0' in lines
    assert not [line for line in lines if "tenant-" in line]
    assert metrics.thread not in (None, threading.main_thread())
    assert metrics.seconds < MOST_SECONDS
