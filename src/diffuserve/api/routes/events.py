"""Events of a job, live: by server-sent events and by WebSocket."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

import orjson
from fastapi import APIRouter, Header, Query, WebSocket, WebSocketDisconnect
from sse_starlette import EventSourceResponse, ServerSentEvent

from diffuserve.api.auth.dependencies import ClientCaller, websocket_caller
from diffuserve.api.path_params import MAX_SEQ, JobId
from diffuserve.api.serializers import event_resource, live_event_resource
from diffuserve.api.services import Services, ServicesDep
from diffuserve.domain.job import JobEvent
from diffuserve.domain.resources.base import Resource
from diffuserve.domain.resources.job import EventResource

router = APIRouter(prefix="/v1/jobs", tags=["events"])

After = Annotated[int, Query(ge=0, le=MAX_SEQ, description="The `seq` of the last event received.")]


@router.get(
    "/{job_id}/events",
    summary="Follow a job by server-sent events",
    response_class=EventSourceResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def stream_events(
    job_id: JobId,
    services: ServicesDep,
    caller: ClientCaller,
    after: After = 0,
    last_event_id: Annotated[str, Header(description="Sent by browsers when they reconnect.")] = "",
) -> EventSourceResponse:
    """Stream the job's events until its final one.

    Stored events have ids, from which a client can resume; `progress` and `preview` have none and may be
    missed.
    """
    await services.store.jobs.get(job_id, caller.scope)
    if last_event_id.isascii() and last_event_id.isdecimal():
        after = min(int(last_event_id[:10]), MAX_SEQ)
    events = _server_sent_events(services, job_id, after)
    return EventSourceResponse(events, ping=services.config.ping_seconds, sep="\n")


@router.websocket("/{job_id}/ws")
async def stream_events_by_websocket(
    websocket: WebSocket, job_id: JobId, services: ServicesDep, after: After = 0
) -> None:
    """Send the same events as JSON messages; close with 1000 after the final one."""
    caller = await websocket_caller(websocket)
    await services.store.jobs.get(job_id, caller.scope)
    await send_all(websocket, job_events(services, job_id, after))


async def job_events(services: Services, job_id: str, after: int) -> AsyncGenerator[EventResource]:
    """Yield the job's events after `after`, stored and live, until the job is final."""
    async with aclosing(services.job_watcher.events(job_id, after)) as events:
        async for event in events:
            if isinstance(event, JobEvent):
                yield event_resource(event)
            else:
                yield live_event_resource(job_id, event)


async def send_all(websocket: WebSocket, resources: AsyncGenerator[Resource]) -> None:
    """Send every resource as JSON, until they end or the client disconnects."""
    await websocket.accept()
    sending = asyncio.create_task(_send(websocket, resources))
    disconnecting = asyncio.create_task(_wait_for_disconnect(websocket))
    try:
        await asyncio.wait({sending, disconnecting}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()
            await websocket.close()
    finally:
        sending.cancel()
        disconnecting.cancel()
        await asyncio.gather(sending, disconnecting, return_exceptions=True)


async def _send(websocket: WebSocket, resources: AsyncGenerator[Resource]) -> None:
    try:
        async for resource in resources:
            await websocket.send_text(orjson.dumps(resource).decode())
    except WebSocketDisconnect:
        return


async def _wait_for_disconnect(websocket: WebSocket) -> None:
    """Return when the client has disconnected; messages that it sends are ignored."""
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass


async def _server_sent_events(services: Services, job_id: str, after: int) -> AsyncGenerator[ServerSentEvent]:
    async with aclosing(job_events(services, job_id, after)) as events:
        async for event in events:
            yield ServerSentEvent(
                orjson.dumps(event).decode(),
                event=event.type,
                id=None if event.seq is None else str(event.seq),
            )
