"""The wait for images of one tenant while another one floods the server with clips of the same model.

A real `diffuserve serve` with its one worker. Images come at a steady rate, however slow the server, and
a latency counts from the second at which its image was due. The other tenant always has clips open. Both
tenants have plans that are alike but for their bands: once the same band, and once what bands are for,
images `interactive` and clips `batch`.
"""

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path

from benchmarks.control.load import Connection, post_request
from benchmarks.control.processes import DIFFUSERVE, Program, free_port, serving_environment
from benchmarks.serve.load import until_ready
from benchmarks.video.workloads import CHECKPOINT, CLIP, Shape
from diffuserve.domain.jobs.job import Band, JobStatus
from diffuserve.domain.tenant import Role
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.store import JobStore
from diffuserve.private_files import private_umask

_IMAGE = Shape(num_frames=1, width=256, height=256, steps=24)
_TARGET = 1.5
_AGEING_STEPS = 64  # two images and more: by default clips would soon share the steps of images as equals
_UNFINISHED = (JobStatus.QUEUED, JobStatus.RUNNING)
_SHARE = 0.45  # of the server's time that images take when they have it to themselves


@dataclass(frozen=True)
class Bands:
    """The bands of both tenants' jobs."""

    images: Band
    clips: Band

    def __str__(self) -> str:
        return f"{self.images} and {self.clips}"


_BANDS = (Bands(Band.INTERACTIVE, Band.BATCH), Bands(Band.STANDARD, Band.STANDARD))


@dataclass(frozen=True)
class Fairness:
    """A load: in each round images alone, and then as many beside `num_clips` open clips, by bands."""

    image: Shape = _IMAGE
    clip: Shape = CLIP
    num_rounds: int = 2
    num_images: int = 14
    num_clips: int = 16
    num_alone: int = 5


@dataclass(frozen=True, kw_only=True)
class FairnessFigure:
    """95th percentiles over all rounds, their ratio, and the extremes of single rounds' ratios."""

    image: Shape
    clip: Shape
    bands: str
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
    """A running server, and the keys of a tenant of each band."""

    port: int
    keys: dict[Band, str]

    async def draw(self, band: Band, shape: Shape, seed: int) -> None:
        """Submit a job and wait for its end."""
        kind = "video.generate" if shape.num_frames > 1 else "image.generate"
        body = {"model": CHECKPOINT.name, "kind": kind, "input": shape.request(seed).to_dict()}
        key = f"Authorization: Bearer {self.keys[band]}"
        async with Connection(self.port) as connection:
            request = post_request("/v1/jobs", json.dumps(body).encode(), [key, "Prefer: wait=60"])
            answer = await connection.send(request)
            while answer.json().get("status") in _UNFINISHED:
                path = f"/v1/jobs/{answer.json()['id']}?wait=60"
                answer = await connection.send(
                    f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{key}\r\n\r\n".encode()
                )
        if answer.status != 200 or answer.json()["status"] != "succeeded":
            raise RuntimeError(f"a job of {band} was answered {answer.status}: {answer.body[:500]!r}")


async def measure_fairness(load: Fairness) -> list[FairnessFigure]:
    folder = Path(tempfile.mkdtemp(prefix="diffuserve-bench-video-"))
    print(f"logs in {folder}", flush=True)
    async with _served(folder) as server:
        return await _measure(server, load)


@dataclass
class _Beside:
    """The latencies of images beside clips, by rounds; the clips drawn meanwhile, and the seconds of it."""

    latencies: list[list[float]] = field(default_factory=list)
    num_clips: int = 0
    seconds: float = 0.0


async def _measure(server: _Server, load: Fairness) -> list[FairnessFigure]:
    """Run each round alone and beside clips, in turn, after some images that are not measured."""
    seeds = count()
    image_seconds = await _seconds_alone(server, load.image, load.num_alone, seeds)
    clip_seconds = await _seconds_alone(server, load.clip, load.num_alone, seeds)
    interval = round(image_seconds / _SHARE, 2)
    alone: list[list[float]] = []
    beside = {bands: _Beside() for bands in _BANDS}
    for _ in range(load.num_rounds):
        alone.append(await _latencies(server, _BANDS[0].images, load, interval, seeds))
        for bands, measured in beside.items():
            start = time.perf_counter()
            async with _flood(server, bands.clips, load, seeds) as drawn:
                measured.latencies.append(await _latencies(server, bands.images, load, interval, seeds))
                measured.num_clips += len(drawn)
                measured.seconds += time.perf_counter() - start
    return [
        FairnessFigure(
            image=load.image,
            clip=load.clip,
            bands=str(bands),
            interval=interval,
            num_clips=load.num_clips,
            rounds=load.num_rounds,
            image_seconds=image_seconds,
            clip_seconds=clip_seconds,
            target=_TARGET,
            clips_per_second=measured.num_clips / measured.seconds,
            **_percentiles(alone, measured.latencies),
        )
        for bands, measured in beside.items()
    ]


def _percentiles(alone: Sequence[list[float]], beside: Sequence[list[float]]) -> dict[str, float]:
    ratios = [_p95(there) / _p95(here) for here, there in zip(alone, beside, strict=True)]
    p95_alone, p95_beside = _p95(list(chain(*alone))), _p95(list(chain(*beside)))
    return {
        "p95_alone": p95_alone,
        "p95_beside": p95_beside,
        "ratio": p95_beside / p95_alone,
        "low": min(ratios),
        "high": max(ratios),
    }


async def _seconds_alone(server: _Server, shape: Shape, num_jobs: int, seeds: "count[int]") -> float:
    """Return the median seconds of jobs that have the server to themselves, after an unmeasured one."""
    measured = []
    for _ in range(num_jobs + 1):
        start = time.perf_counter()
        await server.draw(Band.STANDARD, shape, next(seeds))
        measured.append(time.perf_counter() - start)
    return statistics.median(measured[1:])


async def _latencies(
    server: _Server, band: Band, load: Fairness, interval: float, seeds: "count[int]"
) -> list[float]:
    """Submit an image every `interval` seconds; return the seconds from when each was due to its end."""
    start = time.perf_counter()

    async def draw(index: int) -> float:
        due = start + index * interval
        await asyncio.sleep(due - time.perf_counter())
        await server.draw(band, load.image, next(seeds))
        return time.perf_counter() - due

    return await asyncio.gather(*(draw(index) for index in range(load.num_images)))


@asynccontextmanager
async def _flood(
    server: _Server, band: Band, load: Fairness, seeds: "count[int]"
) -> AsyncIterator[Sequence[float]]:
    """Keep clips of the other tenant open until the block ends; wait for those that are left after it.

    The list grows by the second at which each was finished that was finished inside the block.
    """
    drawn: list[float] = []
    is_over = False

    async def draw_again() -> None:
        while not is_over:
            await server.draw(band, load.clip, next(seeds))
            if not is_over:
                drawn.append(time.perf_counter())

    tasks = [asyncio.create_task(draw_again()) for _ in range(load.num_clips)]
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
    command += ["--ageing-steps", str(_AGEING_STEPS)]
    server = Program("serve", command, serving_environment() | _plans(), folder / "serve.log")
    server.start()
    try:
        await until_ready(server, port)
        yield _Server(port, keys)
    finally:
        await asyncio.to_thread(server.stop)


def _plans() -> dict[str, str]:
    """Return settings with a plan for each band, of the same weight and limits."""
    plans = {band: {"default_band": band, "highest_band": band} for band in Band}
    return {"DIFFUSERVE_PLANS": json.dumps(plans), "DIFFUSERVE_DEFAULT_PLAN": Band.STANDARD}


async def _issue_keys(data_dir: Path) -> dict[Band, str]:
    """Store a key for a tenant of each band in the database, which no server uses yet."""
    data_dir.mkdir(parents=True)
    store = JobStore(f"sqlite+aiosqlite:///{data_dir / 'diffuserve.db'}", MemoryEventBus(), StoreConfig())
    await store.open()
    keys = {}
    for band in Band:
        _, keys[band] = await store.keys.create(Role.TENANT, tenant_id=band, plan=band)
    await store.close()
    return keys


def _p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1]
