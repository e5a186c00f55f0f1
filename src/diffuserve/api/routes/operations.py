"""For operators and their monitors: health, readiness, metrics."""

from collections import Counter

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from diffuserve.api.responses import json_response
from diffuserve.api.services import ServicesOf
from diffuserve.domain.errors import ServerUnavailable
from diffuserve.domain.worker import WorkerState

router = APIRouter(tags=["operations"])


@router.get("/healthz", summary="Whether the process lives")
async def healthz() -> Response:
    return json_response({"status": "ok"})


@router.get("/readyz", summary="Whether jobs would be run")
async def readyz(services: ServicesOf) -> Response:
    """200 once a worker has registered that is still heard, else 503."""
    workers = await services.store.operations.workers()
    if all(worker.state is WorkerState.LOST for worker in workers):
        raise ServerUnavailable("no worker has registered yet", retry_after=1.0)
    return json_response({"status": "ready"})


@router.get("/metrics", summary="Prometheus metrics", response_class=PlainTextResponse)
async def metrics(services: ServicesOf) -> Response:
    """Sizes of the queue are read from the store now, and are the same for all replicas."""
    lanes = await services.store.operations.lanes()
    services.metrics.set_queue((lane.band, lane.num_ready, lane.work_seconds) for lane in lanes)
    workers = await services.store.operations.workers()
    services.metrics.set_workers(Counter(worker.state for worker in workers))
    services.metrics.set_bus(services.bus.is_connected, services.bus.num_dropped)
    services.metrics.webhook_backlog.set(await services.store.webhooks.num_waiting())
    return Response(services.metrics.text(), media_type=CONTENT_TYPE_LATEST)
