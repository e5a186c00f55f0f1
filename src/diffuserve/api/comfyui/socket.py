"""ComfyUI's WebSocket, which follows the prompts that its client sends."""

import asyncio
import struct
import time
from base64 import b64decode
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Query, WebSocket

from diffuserve.api.auth.access import Caller
from diffuserve.api.auth.quota import websocket_caller
from diffuserve.api.auth.waits import WaitSlots
from diffuserve.api.comfyui.prompt_routes import OPEN, prompts_of
from diffuserve.api.comfyui.sent_prompts import SentPrompt, client_topic, failure, images_of, output_of
from diffuserve.api.door.sent_messages import send_all
from diffuserve.api.files.job_files import JobFiles
from diffuserve.api.following.job_watcher import JobWatcher
from diffuserve.api.http.parts import Uses
from diffuserve.domain.errors import JobNotFound
from diffuserve.domain.jobs.job import Job, JobStatus
from diffuserve.domain.text.timed_ids import timed_id
from diffuserve.events.base import EventBus
from diffuserve.jobs.store import JobStore

router = APIRouter(tags=["comfyui"])

_PREVIEW, _PNG = 1, 2  # kinds of binary messages, and of the images in them
_MOST_FOLLOWED = 50  # prompts of one client at a time
_MOST_WAITING = 200  # messages that a slow client has not read

Message = str | bytes


@dataclass(frozen=True)
class SocketParts:
    """Parts that this route uses."""

    store: JobStore
    bus: EventBus
    job_watcher: JobWatcher
    files: JobFiles
    slots: WaitSlots


Used = Annotated[SocketParts, Depends(Uses(SocketParts))]


@router.websocket("/ws")
async def follow_prompts(
    websocket: WebSocket,
    parts: Used,
    client_id: Annotated[str, Query(alias="clientId", max_length=200)] = "",
) -> None:
    """Send the progress of the client's prompts, those that it sends later and those that are not done."""
    caller = await websocket_caller(websocket)
    async with parts.slots.hold(caller):
        await send_all(websocket, _Follower(parts, caller, client_id or timed_id("client_")).messages())


@dataclass
class _Follower:
    """Follows the prompts of one client."""

    parts: SocketParts
    caller: Caller
    client_id: str
    waiting: asyncio.Queue[Message] = field(default_factory=lambda: asyncio.Queue(_MOST_WAITING))
    following: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def messages(self) -> AsyncGenerator[Message]:
        """Yield the messages of all prompts, without end."""
        topic = client_topic(self.caller.tenant_id, self.client_id)
        try:
            with self.parts.bus.listen(topic, self._hear):
                found = await prompts_of(self.parts.store, self.caller, OPEN)
                yield _status(len(found), self.client_id)
                for job, sent in found:
                    if sent.client_id == self.client_id:
                        self._hear({"job_id": job.id})
                while True:
                    yield await self.waiting.get()
        finally:
            for task in self.following.values():
                task.cancel()

    def _hear(self, message: Mapping[str, Any]) -> None:
        """Begin to follow a prompt, which the client has just sent."""
        job_id = str(message["job_id"])
        if job_id not in self.following and len(self.following) < _MOST_FOLLOWED:
            task = asyncio.get_running_loop().create_task(self._follow(job_id))
            self.following[job_id] = task
            task.add_done_callback(lambda _: self.following.pop(job_id, None))

    async def _follow(self, job_id: str) -> None:
        try:
            job = await self.parts.store.jobs.get(job_id, self.caller.tenant_id)
            sent = SentPrompt.of(job)
            if sent is not None:
                await self._tell(job, sent)
        except JobNotFound:
            return  # it was deleted

    async def _tell(self, job: Job, sent: SentPrompt) -> None:
        has_begun = False
        async with aclosing(self.parts.job_watcher.watch(job)) as updates:
            async for update in updates:
                job = update if isinstance(update, Job) else job
                if not has_begun and job.status is not JobStatus.QUEUED:
                    has_begun = True
                    for message in _beginning(job, sent):
                        await self.waiting.put(message)
                if not isinstance(update, Job) and (live := _live(job, sent, update.resource)):
                    await self.waiting.put(live)
        await self._tell_end(job, sent)

    async def _tell_end(self, job: Job, sent: SentPrompt) -> None:
        put = self.waiting.put
        if job.status is JobStatus.SUCCEEDED:
            for node_id in sent.last_ids:
                if node_id in sent.over_socket:
                    await self._send_images(job, node_id)
                    continue
                await put(_text("executed", job, node=node_id, display_node=node_id, output=output_of(job)))
            await put(_text("execution_success", job, timestamp=_now()))
        elif job.status is JobStatus.CANCELED:
            await put(_text("execution_interrupted", job, node_id=sent.sampler_id, node_type="KSampler"))
        else:
            await put(_text("execution_error", job, **failure(job, sent)))
        await put(_text("executing", job, node=None))
        await put(_status(len(await prompts_of(self.parts.store, self.caller, OPEN))))

    async def _send_images(self, job: Job, node_id: str) -> None:
        await self.waiting.put(_text("executing", job, node=node_id, display_node=node_id))
        for image in images_of(job):
            await self.waiting.put(_picture(await self.parts.files.content(job, image)))


def _beginning(job: Job, sent: SentPrompt) -> list[Message]:
    node_id = sent.sampler_id
    return [
        _text("execution_start", job, timestamp=_now()),
        _text("execution_cached", job, nodes=[], timestamp=_now()),
        _text("executing", job, node=node_id, display_node=node_id),
    ]


def _live(job: Job, sent: SentPrompt, event: Any) -> Message | None:
    if event.type == "progress":
        return _text("progress", job, value=event.data["step"], max=event.data["total"], node=sent.sampler_id)
    return _picture(b64decode(event.data["b64"])) if event.type == "preview" else None


def _picture(png: bytes) -> bytes:
    return struct.pack(">II", _PREVIEW, _PNG) + png


def _text(kind: str, job: Job, **data: Any) -> str:
    return orjson.dumps({"type": kind, "data": {**data, "prompt_id": job.id}}).decode()


def _status(remaining: int, client_id: str | None = None) -> str:
    data: dict[str, Any] = {"status": {"exec_info": {"queue_remaining": remaining}}}
    return orjson.dumps({"type": "status", "data": data | ({"sid": client_id} if client_id else {})}).decode()


def _now() -> int:
    return int(time.time() * 1000)
