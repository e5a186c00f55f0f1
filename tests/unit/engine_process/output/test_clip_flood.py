"""Images wait for a bounded part of another tenant's clips, however many there are, to the last file.

What is waited for is counted in frames of clips, and in seconds of virtual time.
"""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast
from unittest.mock import patch

import pytest
from PIL import Image

from diffuserve.agent.metrics import WorkerMetrics
from diffuserve.agent.reporting.result_reporter import ResultReporter
from diffuserve.agent.state.held_job import HeldJob
from diffuserve.domain.jobs.job import VIDEO_GENERATE
from diffuserve.domain.safety import Action
from diffuserve.domain.workers.worker import StoredFile
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine_process.agent_link import AgentLink
from diffuserve.engine_process.engine_host import EngineHost
from diffuserve.engine_process.output.image_output import ImageOutput
from diffuserve.engine_process.output.writers import OrderedWriters
from diffuserve.protocol.messages import FinishedFile, JobFinished, StopEngine
from diffuserve.testing.fake_pipeline import FAKE_SPEC, FakePipeline
from support.hosted_engine import KeptLink, ScriptedFilter, job
from support.virtual_time import now, run_in_virtual_time
from support.waiting import HANG_SECONDS, block_until
from support.worker_fakes import FakeControlPlane, make_lease

NUM_WRITERS, CHUNK = 2, 4
CLIP = {"num_frames": 13, "fps": 8, "width": 64, "height": 64}
MANY = 16


@dataclass
class Tickets:
    """Lets clips past the filter frame by frame: each frame takes a ticket, and waits for one."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    num_waiting: int = 0
    num_free: int = 0
    is_over: bool = False

    def take(self, image: Image.Image) -> Action:
        if image.width != CLIP["width"]:
            return Action.ALLOW
        with self.changed:
            self.num_waiting += 1
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.num_free or self.is_over, HANG_SECONDS)
            self.num_free -= 1
        return Action.ALLOW

    def release_one(self) -> None:
        with self.changed:
            self.num_free += 1
            self.num_waiting -= 1
            self.changed.notify_all()

    def end(self) -> None:
        with self.changed:
            self.is_over = True
            self.changed.notify_all()


def frames_before_the_image(num_clips: int, folder: Path) -> int:
    """Return how many frames of clips are judged and written from an image's last step to its files."""
    tickets, link, put = Tickets(), KeptLink(), set[str]()
    submit = OrderedWriters.submit

    def noted(self: OrderedWriters, key: str, work: Callable[[], None], *, is_clip: bool = False) -> None:
        submit(self, key, work, is_clip=is_clip)
        put.add(key)

    def image_is_done() -> bool:
        return any(done.attempt == "image" for done in link.all(JobFinished))

    pipeline = FakePipeline(spec=replace(FAKE_SPEC, temporal_stride=4))
    images = ImageOutput(ScriptedFilter(tickets.take), "fake")
    with (
        Engine(pipeline, EngineConfig(token_budget=10_000)) as engine,
        patch.object(OrderedWriters, "submit", noted),
    ):
        host = EngineHost(engine, cast(AgentLink, link), images)
        running = threading.Thread(target=host.run)
        running.start()
        for number in range(num_clips):
            host.handle(job(f"clip {number}", folder, params=CLIP, output_format="mp4"))
        most = min(num_clips, NUM_WRITERS)
        block_until(lambda: tickets.num_waiting == most and len(put) == num_clips)
        host.handle(job("image", folder))
        block_until(lambda: len(put) == num_clips + 1)
        num_frames = 0
        while not image_is_done():
            with tickets.changed:
                tickets.changed.wait_for(lambda: tickets.num_waiting == most or image_is_done(), 0.05)
                is_blocked = 0 < tickets.num_waiting == most
            if is_blocked and not image_is_done():
                tickets.release_one()
                num_frames += 1
        tickets.end()
        link.wait_for(lambda: len(link.all(JobFinished)) == num_clips + 1)
        host.handle(StopEngine())
        running.join(HANG_SECONDS)
    return num_frames


def test_the_files_of_an_image_wait_for_no_more_than_the_chunks_that_are_being_written(
    tmp_path: Path,
) -> None:
    alone, beside_two, beside_many = (
        frames_before_the_image(count, _folder(tmp_path, count)) for count in (0, NUM_WRITERS, MANY)
    )
    assert alone == 0
    assert beside_two <= NUM_WRITERS * CHUNK
    assert beside_many <= NUM_WRITERS * CHUNK, f"{MANY} clips delay an image as {NUM_WRITERS} do"


@dataclass
class NarrowLink(FakeControlPlane):
    """A control plane behind a line that carries a block a second, in turns for all that are sent."""

    line: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def upload(self, job_id: str, lease_token: int, name: str, read: Callable[[], bytes]) -> StoredFile:
        for _ in range(len(read())):
            async with self.line:
                await asyncio.sleep(1.0)
        return await super().upload(job_id, lease_token, name, read)


async def seconds_of_an_image(num_clips: int, folder: Path) -> float:
    """Return how long the files of an image are on their way that follow those of clips."""
    plane, ended = NarrowLink(), dict[str, float]()
    reporter = ResultReporter(
        plane.client, WorkerMetrics(), lambda held: ended.update({held.lease.job_id: now()})
    )
    for number in range(num_clips):
        _finish(reporter, f"clip{number}", folder, ["0.mp4", "0-poster.webp", "0-sprites.webp"], 50)
    await asyncio.sleep(10.0)
    start = now()
    _finish(reporter, "image", folder, ["0.png", "thumbnail.webp"], 5)
    await reporter.all_reported()
    assert len(plane.completions) == num_clips + 1
    return ended["image"] - start


def _finish(reporter: ResultReporter, job_id: str, folder: Path, names: list[str], num_blocks: int) -> None:
    kind = VIDEO_GENERATE if job_id.startswith("clip") else "image.generate"
    held = HeldJob(make_lease(job_id, kind=kind), folder / job_id)
    held.folder.mkdir(parents=True)
    for name in names:
        (held.folder / name).write_bytes(bytes(num_blocks))
    files = [
        FinishedFile(path=str(held.folder / name), name=name, content_type="image/png", width=8, height=8)
        for name in names
    ]
    reporter.finished(held, JobFinished(attempt=held.attempt, files=tuple(files), actual_seconds=1.0))


def test_the_upload_of_an_image_shares_its_line_with_a_few_files_of_clips(tmp_path: Path) -> None:
    alone, beside_few, beside_many = (
        run_in_virtual_time(seconds_of_an_image(count, _folder(tmp_path, count))) for count in (0, 2, 40)
    )
    assert alone == pytest.approx(10.0)
    assert beside_many <= 1.2 * beside_few, "how many clips wait makes no difference"
    assert beside_many <= 4 * alone


def _folder(parent: Path, number: int) -> Path:
    folder = parent / str(number)
    folder.mkdir()
    return folder
