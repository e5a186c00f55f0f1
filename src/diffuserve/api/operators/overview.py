"""The server as its operators watch it: its state now, its changes, and its last hour."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from diffuserve.api.auth.dependencies import OperatorCaller
from diffuserve.api.auth.waits import WatchingOperator
from diffuserve.api.config import ApiConfig
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.http.parts import Uses
from diffuserve.api.operators.feed import OverviewFeed
from diffuserve.api.operators.snapshots import Snapshots
from diffuserve.domain.resources.operations import OperationsHistory, OperationsResource
from diffuserve.jobs.store import JobStore

router = APIRouter(prefix="/v1/operations", tags=["operations"], route_class=JsonRoute)


@dataclass(frozen=True)
class OverviewParts:
    """Parts that these routes use."""

    store: JobStore
    config: ApiConfig
    snapshots: Snapshots
    overview_feed: OverviewFeed


Used = Annotated[OverviewParts, Depends(Uses(OverviewParts))]


_HEADERS = {"cache-control": "no-store"}
_PING = ServerSentEvent(comment="ping", sep="\n")


@router.get("", summary="Watch the server", response_model=OperationsResource)
async def read_operations(parts: Used, caller: OperatorCaller) -> Response:
    """Return what the server does now: workers, queue, throughput, use of devices and what fails.

    For operators. It is at most a second old.
    """
    snapshot = await parts.snapshots.newest()
    return Response(snapshot.encoded, media_type="application/json", headers=_HEADERS)


@router.get("/history", summary="Watch the last hour", response_model=OperationsHistory)
async def read_history(parts: Used, caller: OperatorCaller) -> Response:
    """Return a point for each ten seconds of the last hour, oldest first. For operators."""
    points = ",".join(await parts.store.history.points())
    return Response(f'{{"data":[{points}]}}', media_type="application/json", headers=_HEADERS)


@router.get(
    "/events",
    summary="Watch the server by server-sent events",
    response_class=EventSourceResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def stream_operations(parts: Used, caller: WatchingOperator) -> EventSourceResponse:
    """Stream the state as `snapshot`, then as `delta` what changes, every two seconds. For operators.

    A snapshot comes again for a client that was too slow. The stream counts as a wait of the caller, and ends
    when the key is revoked.
    """
    await parts.snapshots.newest()  # refused now rather than in the stream
    return EventSourceResponse(
        parts.overview_feed.events(),
        ping=parts.config.ping_seconds,
        ping_message_factory=lambda: _PING,
        sep="\n",
    )
