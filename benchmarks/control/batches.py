"""Submission of a large batch, and the latency of interactive jobs meanwhile."""

import asyncio
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.control.claims import percentile
from benchmarks.control.database import Database
from benchmarks.control.jobs import REGISTRATION, ControlPlane
from benchmarks.control.load import Connection, post_request

_PAUSE_SECONDS = 0.05
_NUM_QUIET = 60


@dataclass(frozen=True, kw_only=True)
class BatchFigures:
    """Time from an interactive job's submission to its lease, without (`quiet`) and with a batch (`busy`)."""

    database: str
    num_items: int
    seconds: float
    num_busy: int
    quiet_median_ms: float
    quiet_p99_ms: float
    busy_median_ms: float
    busy_p99_ms: float
    busy_max_ms: float


async def measure_batch(database: Database, folder: Path, num_items: int) -> BatchFigures:
    """Measure with this process as client and worker, and another as server."""
    async with (
        ControlPlane(database, folder, num_agents=0) as plane,
        Connection(plane.port) as sender,
        Connection(plane.port) as client,
    ):
        registered = await client.post("/v1/workers", REGISTRATION)
        worker = f"/v1/workers/{registered.json()['worker_id']}"
        quiet = [await _interactive(client, worker, number) for number in range(_NUM_QUIET)]
        sending = asyncio.create_task(_send_batch(sender, num_items))
        busy: list[float] = []
        while not sending.done():
            busy.append(await _interactive(client, worker, _NUM_QUIET + len(busy)))
        seconds = await sending
    return BatchFigures(
        database=database.name,
        num_items=num_items,
        seconds=seconds,
        num_busy=len(busy),
        quiet_median_ms=statistics.median(quiet),
        quiet_p99_ms=percentile(quiet, 99),
        busy_median_ms=statistics.median(busy),
        busy_p99_ms=percentile(busy, 99),
        busy_max_ms=max(busy),
    )


async def _send_batch(connection: Connection, num_items: int) -> float:
    lines = (
        json.dumps({"custom_id": f"item-{n}", "input": {"prompt": f"a red circle, number {n}"}})
        for n in range(num_items)
    )
    body = "\n".join(lines).encode()
    request = post_request("/v1/batches", body).replace(b"application/json", b"application/jsonl", 1)
    started = time.perf_counter()
    answer = await connection.send(request)
    if answer.status != 202 or answer.json()["counts"]["queued"] != num_items:
        raise RuntimeError(f"the batch was answered {answer.status}: {answer.body[:500]!r}")
    return time.perf_counter() - started


async def _interactive(connection: Connection, worker: str, number: int) -> float:
    """Return the milliseconds from submission to lease; complete the job, and pause."""
    job = {"model": "null", "priority": "interactive", "input": {"prompt": "a red circle"}}
    started = time.perf_counter()
    submitted = (await connection.post("/v1/jobs", job)).json()
    claim = {"claim_id": f"claim-{number}", "num_jobs": 1}
    (lease,) = (await connection.post(f"{worker}/claim", claim)).json()["leases"]
    milliseconds = 1_000 * (time.perf_counter() - started)
    assert lease["job_id"] == submitted["id"], "a batch went first"
    done = {"lease_token": lease["lease_token"], "result": {}, "actual_seconds": 0.01}
    await connection.post(f"/v1/leases/{lease['job_id']}/complete", done)
    await asyncio.sleep(_PAUSE_SECONDS)
    return milliseconds
