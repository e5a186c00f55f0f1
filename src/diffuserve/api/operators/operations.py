"""Health, readiness and metrics, for operators and their monitoring."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from diffuserve.api.auth.dependencies import MetricsReader
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.responses import json_response
from diffuserve.api.operators.store_gauges import StoreGauges
from diffuserve.api.reads.catalog import Catalog
from diffuserve.domain.errors import ServerUnavailable
from diffuserve.domain.workers.readiness import why_not_ready
from diffuserve.jobs.store import JobStore
from diffuserve.storage.watch import StorageWatch

router = APIRouter(tags=["operations"], route_class=JsonRoute)


@dataclass(frozen=True)
class OperationsParts:
    """Parts that these routes use."""

    store: JobStore
    storage: StorageWatch
    catalog: Catalog
    store_gauges: StoreGauges


Used = Annotated[OperationsParts, Depends(Uses(OperationsParts))]


@router.get("/healthz", summary="Check that the process is alive")
async def get_health() -> Response:
    """Respond with 200 while the process serves requests."""
    return json_response({"status": "ok"})


@router.get("/readyz", summary="Check that jobs would run")
async def get_readiness(parts: Used) -> Response:
    """Respond with 200 if writes are committed, files can be stored and a worker takes jobs, else with 503.

    It says why. Needs no key; the workers are looked at once a second, however many ask.
    """
    await parts.store.operations.check_writer()
    parts.storage.check()
    reason = why_not_ready(await parts.catalog.workers())
    if reason is not None:
        raise ServerUnavailable(reason, retry_after=1.0)
    return json_response({"status": "ready"})


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=PlainTextResponse,
    dependencies=[MetricsReader],
)
async def get_metrics(parts: Used) -> Response:
    """Return the metrics, to keys with the role monitor or operator.

    The queue and the workers are read from the store, and are the same on every replica.
    """
    return Response(await parts.store_gauges.text(), media_type=CONTENT_TYPE_LATEST)
