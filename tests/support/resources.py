"""Resources as an API would write them, for tests of what reads them."""

from typing import Any

import orjson

from diffuserve.domain.jobs.job import Band, JobStatus
from diffuserve.domain.resources.job import EventResource, JobResource, JobUrls, ProgressResource
from diffuserve.domain.resources.usage import (
    AmountResource,
    FleetUsageResource,
    RunTimesResource,
    UsageField,
    UsageResource,
    UsageRowResource,
    WorkerTimeResource,
)
from diffuserve.domain.resources.worker import WorkerReportResource, WorkerResource
from diffuserve.domain.workers.machines import MachineKind
from diffuserve.domain.workers.worker import WorkerState

NO_PROGRESS = ProgressResource(step=0, total=0, fraction=0.0)


def make_job(**changes: Any) -> JobResource:
    """Build a queued job, with other values for the fields in `changes`."""
    fields: dict[str, Any] = {
        "id": "j1",
        "kind": "image.generate",
        "model": "tiny",
        "status": JobStatus.QUEUED,
        "phase": None,
        "progress": NO_PROGRESS,
        "queue": None,
        "input": {"prompt": "a star"},
        "prompt": None,
        "result": None,
        "error": None,
        "attempt": 0,
        "priority": Band.STANDARD,
        "urls": JobUrls(self="/j1", cancel="/j1/cancel", events="/j1/events", result="/j1/result"),
        "created_at": "2026-01-02T03:04:05.000Z",
        "started_at": None,
        "finished_at": None,
        "metadata": {},
        "batch_id": None,
        "custom_id": None,
    }
    return JobResource(**fields | changes)


def make_worker(**changes: Any) -> WorkerResource:
    """Build a worker that is ready, with other values for the fields in `changes`."""
    fields: dict[str, Any] = {
        "id": "w1",
        "name": "gpu-7",
        "state": WorkerState.READY,
        "labels": {},
        "models": ("tiny",),
        "report": WorkerReportResource(state=WorkerState.READY),
        "registered_at": "2026-01-02T03:04:05.000Z",
        "heartbeat_at": "2026-01-02T03:04:05.000Z",
        "is_draining": False,
        "price_per_hour": None,
        "is_spot": False,
        "num_leases": 0,
    }
    return WorkerResource(**fields | changes)


def server_sent(*events: EventResource) -> bytes:
    """Return the events as a stream of server-sent events."""
    return b"".join(_server_sent(event) for event in events)


def make_event(kind: str, seq: int | None = None, **content: Any) -> EventResource:
    """Build an event of job `j1` with this content; without `seq` a live one."""
    return EventResource(job_id="j1", seq=seq, type=kind, data=content, created_at=None)


def _server_sent(event: EventResource) -> bytes:
    id_line = f"id: {event.seq}\n" if event.seq else ""
    return f"{id_line}event: {event.type}\ndata: {orjson.dumps(event).decode()}\n\n".encode()


def make_usage() -> UsageResource:
    """Build a month in which a model drew images on two kinds of machine, for half of the time."""
    rows = (
        (MachineKind.ON_DEMAND, "succeeded", 2, 1_800.0, 3.6),
        (MachineKind.SPOT, "lost", 0, 0.0, 0.0),
        (MachineKind.SPOT, "succeeded", 4, 900.0, 0.9),
    )
    machines = ((MachineKind.ON_DEMAND, 3_600.0, 7.2), (MachineKind.SPOT, 1_800.0, 1.8))
    return UsageResource(
        since="2026-01-01",
        until="2026-01-31",
        group_by=(UsageField.MODEL, UsageField.KIND, UsageField.OUTCOME),
        data=tuple(
            UsageRowResource(
                model="tiny",
                kind=kind,
                outcome=outcome,
                num_attempts=1,
                num_images=num_images,
                seconds=seconds,
                cost=cost,
            )
            for kind, outcome, num_images, seconds, cost in rows
        ),
        useful=AmountResource(seconds=2_700.0, cost=4.5),
        fleet=FleetUsageResource(
            machines=tuple(
                WorkerTimeResource(kind=kind, seconds=seconds, cost=cost) for kind, seconds, cost in machines
            ),
            overhead=AmountResource(seconds=2_700.0, cost=4.5),
            run_times=(RunTimesResource(model="tiny", num_jobs=6, p95=12.5),),
        ),
    )
