"""A model of clips, and the files of a clip as a worker stores them."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

from diffuserve.domain.workers.worker import Lease
from diffuserve.media.live_stream import LiveStream
from diffuserve.media.sprite_sheet import SpriteSheet
from diffuserve.media.video_file import VIDEO_FORMATS
from diffuserve.media.video_writer import save_video
from support.hand_worker import HAND_SPEC, HandWorker
from support.image_files import file_of

CLIPS = replace(
    HAND_SPEC,
    name="clips",
    num_frames=17,
    max_frames=81,
    temporal_stride=4,
    fps=16,
    max_input_images=1,
    has_first_frame=True,
    has_last_frame=True,
)
"""Generates 4k+1 frames, and takes images as the first and the last of them."""

MP4 = b"\0\0\0\x18ftypisom, and frames"


def drawn_clip(num_frames: int = 9, side: int = 64, fps: int = 8) -> Mapping[str, bytes]:
    """Return the files of a clip that players can show, by role: a white square that crosses a blue ground.

    `live` is what is stored of it while it is decoded.
    """
    frames = [Image.new("RGB", (side, side), (20, 60, 160)) for _ in range(num_frames)]
    for number, frame in enumerate(frames):
        left = number * side // num_frames
        frame.paste((255, 255, 255), (left, side // 4, left + side // 4, side // 2))
    sprites = SpriteSheet(num_frames)
    sprites.add(frames)
    with tempfile.TemporaryDirectory() as folder:
        save_video(frames, Path(folder) / "0.mp4", fps)
        video = (Path(folder) / "0.mp4").read_bytes()
    stream = LiveStream(fps)
    return {
        "video": video,
        "poster": file_of(frames[0], "WEBP"),
        "sprites": file_of(sprites.image(), "WEBP"),
        "live": stream.add(frames) + stream.finish(),
    }


async def complete_clip(worker: HandWorker, lease: Lease, files: Mapping[str, bytes] | None = None) -> None:
    """Store a clip, its poster and its sprite sheet for each that the job asks for, and complete it.

    `files` are by role; without them each is a few bytes that nobody can play.
    """
    artifacts = [
        await _stored(worker, lease, index, role, (files or {}).get(role, MP4))
        for index in range(lease.input["num_images"])
        for role in ("poster", "sprites", "video")
    ]
    (await worker.finish(lease, artifacts)).raise_for_status()


@asynccontextmanager
async def completing(worker: HandWorker, files: Mapping[str, bytes] | None = None) -> AsyncGenerator[None]:
    """Complete every clip within the block, with `files` as in `complete_clip`."""

    async def work() -> None:
        while True:
            for lease in await worker.claim(num_jobs=8, wait=5.0):
                with suppress(httpx.HTTPStatusError):  # it may be deleted meanwhile
                    await complete_clip(worker, lease, files)

    working = asyncio.create_task(work())
    yield
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working


async def _stored(
    worker: HandWorker, lease: Lease, index: int, role: str, content: bytes
) -> Mapping[str, Any]:
    suffix = lease.output_format if role == "video" else "webp"
    name = f"{index}.{suffix}" if role == "video" else f"{index}-{role}.webp"
    stored: dict[str, Any] = (await worker.upload(lease, name, content)).raise_for_status().json()
    asked = lease.input
    shape = {"width": asked["width"], "height": asked["height"], "index": index, "role": role}
    if role == "video":
        shape |= {"num_frames": asked["num_frames"], "fps": asked["fps"], "seed": asked["seed"] + index}
    media_type = VIDEO_FORMATS[suffix].media_type
    return stored | shape | {"content_type": media_type}
