"""A model of clips, and the files of a clip as a worker stores them."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import httpx

from diffuserve.domain.worker import Lease
from diffuserve.media.video_file import VIDEO_FORMATS
from support.hand_worker import HAND_SPEC, HandWorker

CLIPS = replace(
    HAND_SPEC,
    name="clips",
    num_frames=17,
    max_frames=81,
    temporal_stride=4,
    fps=16,
    max_input_images=1,
    has_first_frame=True,
)
"""Generates 4k+1 frames, and takes an image as the first of them."""

MP4 = b"\0\0\0\x18ftypisom, and frames"


async def complete_clip(worker: HandWorker, lease: Lease) -> None:
    """Store a clip, its poster and its sprite sheet for each that the job asks for, and complete it."""
    artifacts = [
        await _stored(worker, lease, index, role)
        for index in range(lease.input["num_images"])
        for role in ("poster", "sprites", "video")
    ]
    (await worker.finish(lease, artifacts)).raise_for_status()


@asynccontextmanager
async def completing(worker: HandWorker) -> AsyncGenerator[None]:
    """Complete every clip within the block."""

    async def work() -> None:
        while True:
            for lease in await worker.claim(num_jobs=8, wait=5.0):
                with suppress(httpx.HTTPStatusError):  # it may be deleted meanwhile
                    await complete_clip(worker, lease)

    working = asyncio.create_task(work())
    yield
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working


async def _stored(worker: HandWorker, lease: Lease, index: int, role: str) -> Mapping[str, Any]:
    suffix = lease.output_format if role == "video" else "webp"
    name = f"{index}.{suffix}" if role == "video" else f"{index}-{role}.webp"
    stored: dict[str, Any] = (await worker.upload(lease, name, MP4)).raise_for_status().json()
    asked = lease.input
    shape = {"width": asked["width"], "height": asked["height"], "index": index, "role": role}
    if role == "video":
        shape |= {"num_frames": asked["num_frames"], "fps": asked["fps"], "seed": asked["seed"] + index}
    media_type = VIDEO_FORMATS[suffix].media_type
    return stored | shape | {"content_type": media_type}
