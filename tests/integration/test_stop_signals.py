"""Signals that reach every process of a worker, as `scancel`, `timeout` and some shells send them."""

import asyncio
import signal
import subprocess
import sys

import psutil
import pytest

from diffuserve.domain.jobs.job import JobStatus
from diffuserve.events.base import job_topic
from support.plane import Plane
from support.waiting import HANG_SECONDS, eventually

SHAPE = {"width": 384, "height": 384, "num_inference_steps": 60}


@pytest.mark.alone
@pytest.mark.parametrize(
    ("number", "gpus"),
    [
        # One engine does what each of two ranks does, and SIGINT is ignored where SIGTERM is.
        *(pytest.param(number, 1, marks=pytest.mark.slow) for number in (signal.SIGTERM, signal.SIGINT)),
        (signal.SIGTERM, 2),
    ],
    ids=str,
)
async def test_a_signal_to_all_processes_of_a_worker_drains_it_and_costs_its_job_nothing(
    plane: Plane, number: signal.Signals, gpus: int
) -> None:
    options = ("--server", plane.url, "--device", "cpu", "--gpus", str(gpus), "--image-filter", "none")
    drain = ("--drain-seconds", str(HANG_SECONDS))
    worker = subprocess.Popen((sys.executable, "-m", "diffuserve", "worker", *options, *drain))
    try:
        job = await plane.submit(model="tiny-flux", input={"prompt": "a blue star", "seed": 1} | SHAPE)
        with plane.bus.subscribe(job_topic(job.id)) as news:
            async with asyncio.timeout(HANG_SECONDS):
                while ((await news.get(HANG_SECONDS)) or {})["type"] != "progress":
                    pass
        for process in (psutil.Process(worker.pid), *psutil.Process(worker.pid).children(recursive=True)):
            process.send_signal(number)
        assert await plane.status(job) is JobStatus.RUNNING
        assert await asyncio.to_thread(worker.wait, HANG_SECONDS) == 0
    finally:
        worker.kill()
        worker.wait()
    done = await plane.store.jobs.get(job.id)
    assert (done.status, done.attempt) == (JobStatus.SUCCEEDED, 1)
    await eventually(lambda: not psutil.Process().children())
