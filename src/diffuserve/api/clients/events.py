"""Events of a job, live: by server-sent events and by WebSocket."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, WebSocket
from sse_starlette import EventSourceResponse, ServerSentEvent

from diffuserve.api.auth.quota import websocket_caller
from diffuserve.api.auth.waits import FollowingCaller, WaitSlots
from diffuserve.api.config import ApiConfig
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.door.sent_messages import send_all
from diffuserve.api.following.job_watcher import JobWatcher
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.path_params import MAX_SEQ, JobId
from diffuserve.domain.jobs.job import Job
from diffuserve.domain.resources.job import EventResource
from diffuserve.jobs.store import JobStore

router = APIRouter(prefix="/v1/jobs", tags=["events"], route_class=JsonRoute)


@dataclass(frozen=True)
class EventParts:
    """Parts that these routes use."""

    store: JobStore
    config: ApiConfig
    job_watcher: JobWatcher
    slots: WaitSlots


Used = Annotated[EventParts, Depends(Uses(EventParts))]


class EventStream(EventSourceResponse):
    """Server-sent events, as the document tells them."""

    media_type = "text/event-stream"


_PING = ServerSentEvent(comment="ping", sep="\n")
After = Annotated[int, Query(ge=0, le=MAX_SEQ, description="The `seq` of the last event received.")]


@router.get(
    "/{job_id}/events",
    summary="Follow a job by server-sent events",
    response_class=EventStream,
    responses={200: {"model": EventResource, "description": "The `data` of each message."}},
)
async def stream_job_events(
    job_id: JobId,
    parts: Used,
    caller: FollowingCaller,
    after: After = 0,
    last_event_id: Annotated[str, Header(description="Sent by browsers when they reconnect.")] = "",
) -> EventStream:
    """Stream the job's events until its final one.

    Stored events have ids, from which a client can resume; `progress`, `preview` and `live` have none and
    may be missed.
    """
    job = await parts.store.jobs.get(job_id, caller.scope)
    if last_event_id.isascii() and last_event_id.isdecimal():
        after = min(int(last_event_id[:10]), MAX_SEQ)
    return EventStream(
        _server_sent_events(parts, job, after),
        ping=parts.config.ping_seconds,
        ping_message_factory=lambda: _PING,
        sep="\n",
    )


@router.websocket("/{job_id}/ws")
async def stream_events_by_websocket(
    websocket: WebSocket, job_id: JobId, parts: Used, after: After = 0
) -> None:
    """Send the same events as JSON messages; close with 1000 after the final one."""
    caller = await websocket_caller(websocket)
    job = await parts.store.jobs.get(job_id, caller.scope)
    async with parts.slots.hold(caller):
        await send_all(websocket, _texts(parts, job, after))


async def _server_sent_events(parts: EventParts, job: Job, after: int) -> AsyncGenerator[bytes]:
    async with aclosing(parts.job_watcher.events(job, after)) as events:
        async for event in events:
            yield event.server_sent


async def _texts(parts: EventParts, job: Job, after: int) -> AsyncGenerator[str | bytes]:
    async with aclosing(parts.job_watcher.events(job, after)) as events:
        async for event in events:
            yield event.text
