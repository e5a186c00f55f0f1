"""What happens to a job, as it happens: server-sent events and WebSockets with the same envelopes."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Header, Query, WebSocket, WebSocketDisconnect
from sse_starlette import EventSourceResponse, ServerSentEvent

from diffuserve.api.auth.dependencies import Client, socket_client
from diffuserve.api.path_params import MAX_SEQ, JobId
from diffuserve.api.serializers import event_document, message_document
from diffuserve.api.services import Services, ServicesOf
from diffuserve.domain.job import JobEvent

router = APIRouter(prefix="/v1/jobs", tags=["events"])

After = Annotated[int, Query(ge=0, le=MAX_SEQ, description="The `seq` of the last event known.")]


@router.get(
    "/{job_id}/events",
    summary="Follow a job by server-sent events",
    response_class=EventSourceResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def follow_job(
    job_id: JobId,
    services: ServicesOf,
    caller: Client,
    after: After = 0,
    last_event_id: Annotated[str, Header(description="As browsers send it when they resume.")] = "",
) -> EventSourceResponse:
    """Stored events have ids and can be resumed; `progress` and `preview` have none and may be missed.

    Ends after the job's final event.
    """
    await services.store.jobs.get(job_id, caller.scope)
    if last_event_id.isascii() and last_event_id.isdecimal():
        after = min(int(last_event_id[:10]), MAX_SEQ)
    events = _server_sent_events(services, job_id, after)
    return EventSourceResponse(events, ping=services.config.ping_seconds, sep="\n")


@router.websocket("/{job_id}/ws")
async def follow_job_by_socket(
    websocket: WebSocket, job_id: JobId, services: ServicesOf, after: After = 0
) -> None:
    """The envelopes of the server-sent events as JSON messages; closes with 1000 after the final one."""
    caller = await socket_client(websocket)
    await services.store.jobs.get(job_id, caller.scope)
    documents = envelopes(services, job_id, after)
    await send_all(websocket, documents)


async def envelopes(services: Services, job_id: str, after: int) -> AsyncGenerator[dict[str, Any]]:
    async with aclosing(services.follower.events(job_id, after)) as events:
        async for event in events:
            if isinstance(event, JobEvent):
                yield event_document(event)
            else:
                yield message_document(job_id, event)


async def send_all(websocket: WebSocket, documents: AsyncGenerator[dict[str, Any]]) -> None:
    """Send what comes until it ends, or until the client leaves."""
    await websocket.accept()
    sending = asyncio.create_task(_send(websocket, documents))
    leaving = asyncio.create_task(_left(websocket))
    try:
        await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()
            await websocket.close()
    finally:
        sending.cancel()
        leaving.cancel()
        await asyncio.gather(sending, leaving, return_exceptions=True)


async def _send(websocket: WebSocket, documents: AsyncGenerator[dict[str, Any]]) -> None:
    try:
        async for document in documents:
            await websocket.send_text(orjson.dumps(document).decode())
    except WebSocketDisconnect:
        return


async def _left(websocket: WebSocket) -> None:
    """Returns when the client has left; what it says meanwhile is not listened to."""
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass


async def _server_sent_events(services: Services, job_id: str, after: int) -> AsyncGenerator[ServerSentEvent]:
    async with aclosing(envelopes(services, job_id, after)) as documents:
        async for document in documents:
            seq = document["seq"]
            yield ServerSentEvent(
                orjson.dumps(document).decode(),
                event=document["type"],
                id=None if seq is None else str(seq),
            )
