"""Clips on their way from the engine to files, past the filter."""

import errno
import io
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import av
import numpy as np
import pytest
from PIL import Image

from diffuserve.domain.safety import Action
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine_process.agent_link import AgentLink
from diffuserve.engine_process.engine_host import EngineHost
from diffuserve.engine_process.output.clip_files import ClipFiles, ClipPlan
from diffuserve.engine_process.output.image_output import ImageOutput, in_background
from diffuserve.media.video_writer import VideoWriter, read_clip_parameters
from diffuserve.protocol.messages import (
    AbortJob,
    AddJob,
    FilterVerdict,
    FinishedFile,
    JobFailed,
    JobFinished,
    LiveDropped,
    LivePart,
    PreviewReady,
    StepProgress,
    StopEngine,
)
from diffuserve.testing.fake_pipeline import FAKE_SPEC, FakePipeline
from support.hosted_engine import NO_FILTER, KeptLink, ScriptedFilter, job, serve
from support.waiting import HANG_SECONDS

NUM_FRAMES = 13
CLIP = {"num_frames": NUM_FRAMES, "fps": 8, "width": 64, "height": 96}


@pytest.fixture
def fake() -> FakePipeline:
    """Return a model whose clips are decoded in chunks of 1, 4, 4 … frames."""
    return FakePipeline(spec=replace(FAKE_SPEC, temporal_stride=4))


def clip(prompt: str, folder: Path, **values: Any) -> AddJob:
    params = CLIP | values.pop("params", {})
    return job(prompt, folder, params=params, **({"output_format": "mp4"} | values))


def at_frame(number: int, action: Action) -> ScriptedFilter:
    """Return a filter that finds something in the frame that it sees as number `number`, from 0."""
    seen = iter(range(1_000))
    return ScriptedFilter(lambda _: action if next(seen) == number else Action.ALLOW)


def filtered(script: ScriptedFilter, every: int = 1) -> ImageOutput:
    return ImageOutput(script, "fake", frames_every=every)


def num_frames_in(path: Path | io.BytesIO) -> int:
    with av.open(path if isinstance(path, io.BytesIO) else str(path), "r") as container:
        return len(list(container.decode(video=0)))


def pixels(path: Path) -> "np.ndarray[Any, Any]":
    """Return a clip's frames, or an image, as levels."""
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def by_role(done: JobFinished) -> dict[str, list[FinishedFile]]:
    roles: dict[str, list[FinishedFile]] = {}
    for file in done.files:
        roles.setdefault(file.role, []).append(file)
    return roles


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("output_format", ["mp4", "webm", "gif", "webp"])
def test_a_clip_becomes_a_file_with_a_poster_sprites_and_a_thumbnail(
    fake: FakePipeline, tmp_path: Path, output_format: str
) -> None:
    images = ImageOutput(None, "fake-video", in_background(lambda: "ab12"))
    link = serve(fake, images, [clip("star", tmp_path, output_format=output_format)])
    (done,) = link.all(JobFinished)
    roles = by_role(done)
    (video,), (poster,), (sprites,) = roles["video"], roles["poster"], roles["sprites"]
    assert (video.name, video.num_frames, video.fps, video.seed) == (f"0.{output_format}", NUM_FRAMES, 8, 1)
    assert (video.width, video.height) == (64, 96)
    assert (poster.name, poster.width, poster.height) == ("0-poster.webp", 64, 96)
    assert (sprites.name, sprites.num_frames) == ("0-sprites.webp", NUM_FRAMES)
    assert [file.name for file in roles["thumbnail"]] == ["thumbnail.webp"]
    assert left(tmp_path / "star") == sorted(file.name for file in done.files)
    for file in done.files:
        parameters = read_clip_parameters(Path(file.path))
        assert (parameters["prompt"], parameters["num_frames"], parameters["model_hash"]) == (
            "star",
            NUM_FRAMES,
            "ab12",
        )
    assert {"filter_seconds", "video_encode_seconds", "decode_seconds"} <= done.timings.keys()
    progress = [report.frames for report in link.all(StepProgress) if report.frames]
    assert progress == [1, 5, 9, 13]


@pytest.mark.parametrize(("num_frames", "shade"), [(5, 20), (3, 20), (2, 10)])
def test_the_poster_is_the_middle_frame_of_a_clip_or_the_last_before_it(
    tmp_path: Path, num_frames: int, shade: int
) -> None:
    plan = ClipPlan(
        index=0, seed=1, num_frames=5, fps=8, folder=tmp_path, output_format="mp4", origin={"prompt": "a"}
    )
    files = ClipFiles(plan)
    frames = [Image.new("RGB", (64, 64), (10 * place,) * 3) for place in range(num_frames)]
    for chunk in (frames[:1], frames[1:]):
        files.add(chunk, is_blurred=False)
    poster = next(file for file in files.finish() if file.role == "poster")
    assert abs(int(pixels(Path(poster.path)).mean()) - shade) < 3


def test_each_clip_of_a_request_has_files_and_a_seed_of_its_own(fake: FakePipeline, tmp_path: Path) -> None:
    (done,) = serve(fake, NO_FILTER, [clip("two", tmp_path, params={"num_images": 2})]).all(JobFinished)
    roles = by_role(done)
    assert [(file.name, file.index, file.seed) for file in roles["video"]] == [
        ("0.mp4", 0, 1),
        ("1.mp4", 1, 2),
    ]
    assert [len(roles[role]) for role in ("poster", "sprites", "thumbnail")] == [2, 2, 1]
    for file in roles["video"]:
        assert read_clip_parameters(Path(file.path))["seed"] == file.seed


def test_a_clip_of_one_frame_is_a_clip_where_its_format_is_one(fake: FakePipeline, tmp_path: Path) -> None:
    link = serve(fake, NO_FILTER, [clip("one", tmp_path, params={"num_frames": 1, "fps": None})])
    assert link.all(JobFailed) == []
    (done,) = link.all(JobFinished)
    (video,) = by_role(done)["video"]
    assert (video.num_frames, num_frames_in(Path(video.path))) == (1, 1)


def test_files_of_clips_without_metadata_carry_no_parameters(fake: FakePipeline, tmp_path: Path) -> None:
    images = ImageOutput(None, "fake", has_metadata=False)
    (done,) = serve(fake, images, [clip("a star", tmp_path)]).all(JobFinished)
    assert all(b"a star" not in Path(file.path).read_bytes() for file in done.files)


@pytest.mark.parametrize("number", [0, 7, NUM_FRAMES - 1])
def test_one_blocked_frame_blocks_the_clip(fake: FakePipeline, tmp_path: Path, number: int) -> None:
    """INV-7: nothing of it is left, and what was shown is taken back."""
    jobs = [clip("bad", tmp_path, live=True)]
    link = serve(fake, filtered(at_frame(number, Action.BLOCK)), jobs)
    (failed,) = link.all(JobFailed)
    assert (failed.code, failed.retryable) == ("output_blocked", False)
    assert "a frame of a clip is blocked by the image filter (category 'nsfw')" in failed.message
    assert [verdict["action"] for verdict in failed.safety["image"]["verdicts"]] == ["block"]
    assert [name for name in left(tmp_path / "bad") if not name.startswith("live")] == []
    assert [(verdict.stage, verdict.action) for verdict in link.all(FilterVerdict)] == [("video", "block")]
    own = [message for message in link.sent if isinstance(message, LivePart | LiveDropped | JobFailed)]
    dropped = [type(message) for message in own].index(LiveDropped)
    assert not [message for message in own[dropped:] if isinstance(message, LivePart)]
    assert isinstance(own[-1], JobFailed)


def test_frames_in_parts_were_judged_before(fake: FakePipeline, tmp_path: Path) -> None:
    """INV-7: no part has a frame that the filter has not seen."""
    num_judged = 0
    shown: list[tuple[int, int]] = []

    def look(_frame: Image.Image) -> Action:
        nonlocal num_judged
        num_judged += 1
        return Action.ALLOW

    class Link(KeptLink):
        def send(self, *messages: Any) -> None:
            message = messages[0]
            if isinstance(message, LivePart):
                content = Path(message.path).read_bytes()
                parts.append(content)
                shown.append((num_frames_in(io.BytesIO(b"".join(parts))), num_judged))
            super().send(*messages)

    parts: list[bytes] = []
    serve(fake, filtered(ScriptedFilter(look), every=3), [clip("star", tmp_path, live=True)], Link())
    assert shown[-1] == (NUM_FRAMES, 5)  # 0, 3, 6, 9 and 12
    assert all(num_frames <= 3 * (judged - 1) + 1 for num_frames, judged in shown)
    assert len(shown) == 2  # half a second is four frames


@pytest.mark.parametrize(("every", "num_judged"), [(1, 13), (3, 5), (5, 4), (16, 2)])
def test_the_first_frame_the_last_and_every_nth_between_are_judged(
    fake: FakePipeline, tmp_path: Path, every: int, num_judged: int
) -> None:
    judged: list[Image.Image] = []

    def look(frame: Image.Image) -> Action:
        judged.append(frame)
        return Action.ALLOW

    link = serve(fake, filtered(ScriptedFilter(look), every), [clip("star", tmp_path)])
    (done,) = link.all(JobFinished)
    assert len(judged) == num_judged
    assert by_role(done)["video"][0].num_frames == NUM_FRAMES
    assert len(link.all(FilterVerdict)) == 1, "one for the clip"


@pytest.mark.parametrize("number", [0, 7, NUM_FRAMES - 1])
def test_one_frame_to_blur_blurs_the_whole_clip(fake: FakePipeline, tmp_path: Path, number: int) -> None:
    fake.poison = lambda params, prediction: prediction * 0.3  # leaves noise, so that there is detail
    size = {"width": 128, "height": 128}
    (plain,) = serve(fake, NO_FILTER, [clip("plain", tmp_path, params=size)]).all(JobFinished)
    jobs = [clip("blur", tmp_path, live=True, params=size)]
    link = serve(fake, filtered(at_frame(number, Action.BLUR)), jobs)
    (done,) = link.all(JobFinished)
    assert done.warnings == ("clip 0 was blurred by the image filter (category 'nsfw')",)
    for ours, theirs in zip(done.files, plain.files, strict=True):
        blurred, sharp = pixels(Path(ours.path)), pixels(Path(theirs.path))
        assert blurred.shape == sharp.shape
        rough = [roughness(frame) for frame in blurred]
        assert max(rough) < 0.6 * min(roughness(frame) for frame in sharp), ours.name
    assert by_role(done)["video"][0].num_frames == NUM_FRAMES
    assert link.all(LiveDropped), "what was shown of it is taken back"


def roughness(levels: "np.ndarray[Any, Any]") -> float:
    return float(np.abs(np.diff(levels.astype(float), axis=1)).mean())


def test_a_filter_that_fails_lets_no_frame_pass(fake: FakePipeline, tmp_path: Path) -> None:
    def fail(_image: Image.Image) -> Action:
        raise ValueError("the weights are gone")

    jobs = [clip("star", tmp_path, live=True), job("other", tmp_path)]
    link = serve(fake, filtered(ScriptedFilter(fail)), jobs)
    failures = {failed.attempt: failed for failed in link.all(JobFailed)}
    assert (failures["star"].code, failures["star"].retryable) == ("internal_error", True)
    assert link.all(LivePart) == []
    assert left(tmp_path / "star") == []


def fail_to_write(error: Exception) -> Callable[..., None]:
    def write(writer: VideoWriter, frames: Any) -> None:
        if writer.num_frames >= 5:
            raise error
        real(writer, frames)

    real = VideoWriter.write
    return write


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), av.error.InvalidDataError(1, "Invalid data")],
)
def test_a_broken_encoder_fails_that_job_alone(
    fake: FakePipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """INV-3."""
    monkeypatch.setattr(VideoWriter, "write", fail_to_write(error))
    link = serve(fake, NO_FILTER, [clip("star", tmp_path, live=True), job("image", tmp_path)])
    (failed,), (done,) = link.all(JobFailed), link.all(JobFinished)
    assert (failed.attempt, failed.code, failed.retryable) == ("star", "output_not_written", True)
    assert str(error.args[1]) in failed.message
    assert str(tmp_path) not in failed.message
    assert done.attempt == "image"
    assert [name for name in left(tmp_path / "star") if not name.startswith("live")] == []


@pytest.mark.parametrize("name", [".0.mp4.partial", ".0-poster.webp.partial", ".thumbnail.webp.partial"])
def test_a_full_disk_fails_that_job_alone_and_leaves_nothing(
    fake: FakePipeline, tmp_path: Path, name: str
) -> None:
    full = clip("full", tmp_path)
    (tmp_path / "full" / name).symlink_to("/dev/full")
    link = serve(fake, NO_FILTER, [full, clip("other", tmp_path)])
    (failed,), (done,) = link.all(JobFailed), link.all(JobFinished)
    assert (failed.attempt, failed.code, failed.retryable) == ("full", "output_not_written", True)
    assert "No space left on device" in failed.message
    assert left(tmp_path / "full") == []
    assert done.attempt == "other"


def test_a_full_disk_fails_an_image_in_the_same_way(fake: FakePipeline, tmp_path: Path) -> None:
    full = job("full", tmp_path)
    (tmp_path / "full" / ".0.png.partial").symlink_to("/dev/full")
    (failed,) = serve(fake, NO_FILTER, [full]).all(JobFailed)
    assert (failed.code, failed.retryable) == ("output_not_written", True)
    assert left(tmp_path / "full") == []


def test_an_aborted_clip_leaves_nothing(fake: FakePipeline, tmp_path: Path) -> None:
    link = KeptLink()
    with Engine(fake, EngineConfig(token_budget=10_000)) as engine:
        host = EngineHost(engine, cast(AgentLink, link), NO_FILTER)
        chunks = 0

        def abort_between_chunks(_requests: Any) -> None:
            nonlocal chunks
            chunks += 1
            if chunks == 3:
                host.handle(AbortJob(attempt="star"))

        fake.on_decode = abort_between_chunks
        running = threading.Thread(target=host.run)
        running.start()
        host.handle(clip("star", tmp_path, live=True))
        link.wait_for(lambda: bool(link.all(JobFailed) or link.all(JobFinished)))
        host.handle(StopEngine())
        running.join(HANG_SECONDS)
    (failed,) = link.all(JobFailed)
    assert (failed.code, failed.retryable) == ("aborted", False)
    assert [name for name in left(tmp_path / "star") if not name.startswith("live")] == []
    assert link.all(LiveDropped)


def test_each_frame_of_a_strip_is_judged_by_itself(fake: FakePipeline, tmp_path: Path) -> None:
    sizes: list[tuple[int, int]] = []

    def look(image: Image.Image) -> Action:
        sizes.append(image.size)
        return Action.BLOCK if image.size != (64, 96) and len(sizes) == 3 else Action.ALLOW

    jobs = [clip("star", tmp_path, num_previews=1)]
    link = serve(fake, filtered(ScriptedFilter(look)), jobs)
    strip = sizes[: len(sizes) - NUM_FRAMES]
    assert len(strip) == 4, "latent frames"
    assert all(abs(height / width - 96 / 64) < 0.1 for width, height in strip)
    assert link.all(PreviewReady) == []
    assert len(link.all(JobFinished)) == 1


def test_a_slow_filter_keeps_back_the_decoding_of_its_clip_alone(fake: FakePipeline, tmp_path: Path) -> None:
    """A bounded number of chunks waits in memory, while images go on."""
    released, decoded = threading.Event(), 0
    jobs = [clip("slow", tmp_path, params={"num_images": 4}), job("image", tmp_path)]

    def hold(image: Image.Image) -> Action:
        if image.size == (64, 96):
            assert released.wait(HANG_SECONDS)
        return Action.ALLOW

    def count(requests: Any) -> None:
        nonlocal decoded
        decoded += requests[0].prompt == "slow"

    fake.on_decode = count
    link = KeptLink()
    with Engine(fake, EngineConfig(token_budget=10_000)) as engine:
        host = EngineHost(engine, cast(AgentLink, link), filtered(ScriptedFilter(hold)))
        running = threading.Thread(target=host.run)
        running.start()
        for wanted in jobs:
            host.handle(wanted)
        link.wait_for(lambda: len(link.all(JobFinished)) == 1)
        assert link.all(JobFinished)[0].attempt == "image"
        held_back = decoded
        released.set()
        link.wait_for(lambda: len(link.all(JobFinished)) == 2)
        host.handle(StopEngine())
        running.join(HANG_SECONDS)
    assert held_back <= 6, "of sixteen chunks"
    assert decoded == 16


def test_parts_of_the_first_clip_are_there_while_the_rest_is_decoded(
    fake: FakePipeline, tmp_path: Path
) -> None:
    link = serve(fake, NO_FILTER, [clip("two", tmp_path, live=True, params={"num_images": 2})])
    (done,) = link.all(JobFinished)
    parts = link.all(LivePart)
    assert [part.number for part in parts] == [0, 1, 2]
    assert link.sent.index(parts[0]) < max(
        index for index, sent in enumerate(link.sent) if isinstance(sent, StepProgress)
    )
    contents = [Path(part.path).read_bytes() for part in parts]
    assert [num_frames_in(io.BytesIO(b"".join(contents[:count]))) for count in (1, 2, 3)] == [4, 8, 13]
    assert not link.all(LiveDropped)
    assert len(by_role(done)["video"]) == 2
    assert serve(fake, NO_FILTER, [clip("quiet", tmp_path)]).all(LivePart) == [], "nobody asked for them"
