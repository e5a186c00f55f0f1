"""The server as its operators watch it: its state now, its changes, and its last hour."""

from fastapi import APIRouter, Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from diffuserve.api.auth.dependencies import OperatorCaller
from diffuserve.api.auth.waits import WatchingOperator
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.services import ServicesDep
from diffuserve.domain.resources.operations import OperationsHistory, OperationsResource

router = APIRouter(prefix="/v1/operations", tags=["operations"], route_class=JsonRoute)

_HEADERS = {"cache-control": "no-store"}
_PING = ServerSentEvent(comment="ping", sep="\n")


@router.get("", summary="Watch the server", response_model=OperationsResource)
async def read_operations(services: ServicesDep, caller: OperatorCaller) -> Response:
    """Return what the server does now: workers, queue, throughput, use of devices and what fails.

    For operators. It is at most a second old.
    """
    snapshot = await services.snapshots.newest()
    return Response(snapshot.encoded, media_type="application/json", headers=_HEADERS)


@router.get("/history", summary="Watch the last hour", response_model=OperationsHistory)
async def read_history(services: ServicesDep, caller: OperatorCaller) -> Response:
    """Return a point for each ten seconds of the last hour, oldest first. For operators."""
    points = ",".join(await services.store.history.points())
    return Response(f'{{"data":[{points}]}}', media_type="application/json", headers=_HEADERS)


@router.get(
    "/events",
    summary="Watch the server by server-sent events",
    response_class=EventSourceResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def stream_operations(services: ServicesDep, caller: WatchingOperator) -> EventSourceResponse:
    """Stream the state as `snapshot`, then as `delta` what changes, every two seconds. For operators.

    A snapshot comes again for a client that was too slow. The stream counts as a wait of the caller, and ends
    when the key is revoked.
    """
    await services.snapshots.newest()  # refused now rather than in the stream
    return EventSourceResponse(
        services.overview_feed.events(),
        ping=services.config.ping_seconds,
        ping_message_factory=lambda: _PING,
        sep="\n",
    )
