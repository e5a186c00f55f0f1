"""The wait for images of one tenant while another one floods the server with clips of the same model.

A real `diffuserve serve` with its one worker. Images come at a steady rate, however slow the server, and
a latency counts from the second at which its image was due. The other tenant always has clips open.
"""

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

from bench_serve import until_ready
from control_load import Connection, post_request
from control_processes import DIFFUSERVE, Program, free_port, serving_environment
from diffuserve.domain.tenant import Role
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.store import JobStore
from diffuserve.private_files import private_umask
from video_workloads import CHECKPOINT, CLIP, Shape

_IMAGE_TENANT, _CLIP_TENANT = "images", "clips"
_LARGE = Shape(num_frames=1, width=256, height=256, steps=8)
_SMALL = Shape(num_frames=1, width=96, height=96, steps=4)
_TARGET = 1.5
_SHARE = 0.3  # of the server's time that images take when they have it to themselves


@dataclass(frozen=True)
class Fairness:
    """A load: in each round as many images alone, and then as many beside `num_clips` open clips."""

    images: tuple[Shape, ...] = (_SMALL, _LARGE)
    clip: Shape = CLIP
    num_images: int = 20
    num_clips: int = 16
    num_alone: int = 5


@dataclass(frozen=True, kw_only=True)
class FairnessFigure:
    """95th percentiles over all rounds, their ratio, and the extremes of single rounds' ratios."""

    image: Shape
    clip: Shape
    interval: float
    num_clips: int
    rounds: int
    image_seconds: float
    clip_seconds: float
    p95_alone: float
    p95_beside: float
    ratio: float
    low: float
    high: float
    target: float
    clips_per_second: float


@dataclass(frozen=True)
class _Server:
    """A running server and the keys of the two tenants."""

    port: int
    keys: dict[str, str]

    async def draw(self, tenant: str, shape: Shape, seed: int) -> None:
        """Submit a job and wait for its end."""
        kind = "video.generate" if shape.num_frames > 1 else "image.generate"
        body = {"model": CHECKPOINT.name, "kind": kind, "input": shape.request(seed).to_dict()}
        headers = [f"Authorization: Bearer {self.keys[tenant]}", "Prefer: wait=120"]
        async with Connection(self.port) as connection:
            answer = await connection.send(post_request("/v1/jobs", json.dumps(body).encode(), headers))
        if answer.status != 200 or answer.json()["status"] != "succeeded":
            raise RuntimeError(f"a job of {tenant} was answered {answer.status}: {answer.body[:500]!r}")


async def measure_fairness(load: Fairness, rounds: int) -> list[FairnessFigure]:
    folder = Path(tempfile.mkdtemp(prefix="diffuserve-bench-video-"))
    print(f"logs in {folder}", flush=True)
    async with _served(folder) as server:
        return [await _measure(server, image, load, rounds) for image in load.images]


async def _measure(server: _Server, image: Shape, load: Fairness, rounds: int) -> FairnessFigure:
    """Run each round alone and beside clips, in turn, after some images that are not measured."""
    seeds = count()
    image_seconds = await _seconds_alone(server, _IMAGE_TENANT, image, load.num_alone, seeds)
    clip_seconds = await _seconds_alone(server, _CLIP_TENANT, load.clip, load.num_alone, seeds)
    interval = round(image_seconds / _SHARE, 2)
    alone: list[list[float]] = []
    beside: list[list[float]] = []
    num_clips, seconds = 0, 0.0
    for _ in range(rounds):
        alone.append(await _latencies(server, image, load.num_images, interval, seeds))
        start = time.perf_counter()
        async with _flood(server, load.clip, load.num_clips, seeds) as drawn:
            beside.append(await _latencies(server, image, load.num_images, interval, seeds))
        num_clips += len(drawn)
        seconds += time.perf_counter() - start
    ratios = [_p95(there) / _p95(here) for here, there in zip(alone, beside, strict=True)]
    p95_alone, p95_beside = _p95(list(chain(*alone))), _p95(list(chain(*beside)))
    return FairnessFigure(
        image=image,
        clip=load.clip,
        interval=interval,
        num_clips=load.num_clips,
        rounds=rounds,
        image_seconds=image_seconds,
        clip_seconds=clip_seconds,
        p95_alone=p95_alone,
        p95_beside=p95_beside,
        ratio=p95_beside / p95_alone,
        low=min(ratios),
        high=max(ratios),
        target=_TARGET,
        clips_per_second=num_clips / seconds,
    )


async def _seconds_alone(
    server: _Server, tenant: str, shape: Shape, num_jobs: int, seeds: "count[int]"
) -> float:
    """Return the median seconds of jobs that have the server to themselves, after an unmeasured one."""
    measured = []
    for _ in range(num_jobs + 1):
        start = time.perf_counter()
        await server.draw(tenant, shape, next(seeds))
        measured.append(time.perf_counter() - start)
    return statistics.median(measured[1:])


async def _latencies(
    server: _Server, image: Shape, num_images: int, interval: float, seeds: "count[int]"
) -> list[float]:
    """Submit an image every `interval` seconds; return the seconds from when each was due to its end."""
    start = time.perf_counter()

    async def draw(index: int) -> float:
        due = start + index * interval
        await asyncio.sleep(due - time.perf_counter())
        await server.draw(_IMAGE_TENANT, image, next(seeds))
        return time.perf_counter() - due

    return await asyncio.gather(*(draw(index) for index in range(num_images)))


@asynccontextmanager
async def _flood(
    server: _Server, clip: Shape, num_clips: int, seeds: "count[int]"
) -> AsyncIterator[Sequence[float]]:
    """Keep clips of the other tenant open until the block ends; wait for those that are left after it.

    The list grows by the second at which each was finished that was finished inside the block.
    """
    drawn: list[float] = []
    is_over = False

    async def draw_again() -> None:
        while not is_over:
            await server.draw(_CLIP_TENANT, clip, next(seeds))
            if not is_over:
                drawn.append(time.perf_counter())

    tasks = [asyncio.create_task(draw_again()) for _ in range(num_clips)]
    try:
        await _until_first(drawn, tasks)
        yield drawn
    finally:
        is_over = True
        await asyncio.gather(*tasks)


async def _until_first(drawn: Sequence[float], tasks: "Sequence[asyncio.Task[None]]") -> None:
    """Wait until a clip is finished: the flood is then under way."""
    while not drawn:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
                await asyncio.gather(*tasks)


@asynccontextmanager
async def _served(folder: Path) -> AsyncIterator[_Server]:
    """Start a server with a worker of its own, and wait until it is ready."""
    port, data = free_port(), folder / "data"
    with private_umask():
        keys = await _issue_keys(data)
    command = [*DIFFUSERVE, "serve", "--port", str(port), "--data-dir", str(data)]
    command += ["--model", str(CHECKPOINT), "--image-filter", "none", "--device", "cpu"]
    server = Program("serve", command, serving_environment(), folder / "serve.log")
    server.start()
    try:
        await until_ready(server, port)
        yield _Server(port, keys)
    finally:
        await asyncio.to_thread(server.stop)


async def _issue_keys(data_dir: Path) -> dict[str, str]:
    """Store a key for each tenant in the database, which no server uses yet."""
    data_dir.mkdir(parents=True)
    store = JobStore(f"sqlite+aiosqlite:///{data_dir / 'diffuserve.db'}", MemoryEventBus(), StoreConfig())
    await store.open()
    keys = {}
    for tenant in (_IMAGE_TENANT, _CLIP_TENANT):
        _, keys[tenant] = await store.keys.create(Role.TENANT, tenant_id=tenant)
    await store.close()
    return keys


def _p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1]
