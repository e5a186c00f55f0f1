"""Sounds and clips with sound on their way to files: judged, allowed or withheld."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from diffuserve.domain.safety import Action, Verdict
from diffuserve.engine_process.output.image_output import ImageOutput
from diffuserve.media.sound_writer import read_sound
from diffuserve.media.video_writer import read_clip_parameters
from diffuserve.protocol.messages import AddJob, FilterVerdict, FinishedFile, JobFailed, JobFinished
from diffuserve.testing.fake_pipeline import FAKE_SOUND_SPEC, FAKE_SPEC, FakePipeline
from support.hosted_engine import NO_FILTER, ScriptedFilter, ScriptedJudge, job, serve

PASSING = ScriptedFilter(lambda _: Action.ALLOW)


def judged(action: Action) -> ImageOutput:
    return ImageOutput(PASSING, "fake", sound_judge=ScriptedJudge(action))


@pytest.fixture
def singer() -> FakePipeline:
    return FakePipeline(spec=FAKE_SOUND_SPEC)


@pytest.fixture
def camera() -> FakePipeline:
    """Return a model of clips with sound."""
    return FakePipeline(spec=replace(FAKE_SPEC, temporal_stride=4, sample_rate=16_000))


def rain(folder: Path, output_format: str = "wav", params: Mapping[str, Any] | None = None) -> AddJob:
    size = {"width": None, "height": None}
    return job("rain", folder, output_format=output_format, params={**size, **(params or {})})


def clip(folder: Path, output_format: str = "mp4") -> AddJob:
    size = {"width": 64, "height": 64, "num_frames": 9, "fps": 8}
    return job("storm", folder, output_format=output_format, params=size)


def video_of(done: JobFinished) -> FinishedFile:
    return next(file for file in done.files if file.role == "video")


@pytest.mark.parametrize("output_format", ["wav", "flac"])
def test_sounds_become_files_with_a_picture_of_the_first(
    singer: FakePipeline, tmp_path: Path, output_format: str
) -> None:
    wanted = rain(tmp_path, output_format, {"seconds": 1.5, "num_images": 2})
    (done,) = serve(singer, NO_FILTER, [wanted]).all(JobFinished)
    first, second, picture = done.files
    assert (first.name, first.role, first.index, first.seed) == (f"0.{output_format}", "audio", 0, 1)
    assert (second.name, second.index, second.seed) == (f"1.{output_format}", 1, 2)
    assert (first.seconds, first.channels, first.sample_rate) == (1.5, 2, 16_000)
    assert (first.content_type, first.width, first.fps) == (f"audio/{output_format}", None, None)
    assert (picture.role, picture.name, picture.width) == ("thumbnail", "thumbnail.webp", 256)
    assert read_sound(Path(first.path)).seconds == 1.5
    assert read_clip_parameters(Path(second.path))["seed"] == 2
    assert done.safety == {}
    assert {"filter_seconds", "denoise_seconds"} <= done.timings.keys()


def test_without_a_judge_sounds_leave_only_where_images_do_or_if_that_is_allowed(
    singer: FakePipeline, tmp_path: Path
) -> None:
    (failed,) = serve(singer, ImageOutput(PASSING, "fake"), [rain(tmp_path)]).all(JobFailed)
    assert (failed.code, failed.retryable, failed.actual_seconds) == ("output_blocked", False, 0.0)
    assert "--allow-unjudged-audio" in failed.message
    assert singer.encoded_batches == [], "it is refused before any work"
    assert list((tmp_path / "rain").iterdir()) == []
    allowed = ImageOutput(PASSING, "fake", allows_unjudged_sounds=True)
    assert serve(singer, allowed, [rain(tmp_path)]).all(JobFailed) == []


def test_a_judge_passes_or_blocks_a_sound_and_is_recorded(singer: FakePipeline, tmp_path: Path) -> None:
    passing = judged(Action.ALLOW)
    link = serve(singer, passing, [rain(tmp_path)])
    assert passing.sound_judge is not None
    (done,), (verdict,) = link.all(JobFinished), link.all(FilterVerdict)
    assert done.safety == {
        "sound": {
            "filter": asdict(passing.sound_judge.info),
            "verdicts": [{"action": "allow", "findings": []}],
        }
    }
    assert (verdict.stage, verdict.action) == ("sound", "allow")
    for file in (tmp_path / "rain").iterdir():
        file.unlink()
    for action in (Action.BLOCK, Action.BLUR):
        (failed,) = serve(singer, judged(action), [rain(tmp_path)]).all(JobFailed)
        assert (failed.code, failed.retryable) == ("output_blocked", False)
        assert failed.safety["sound"]["verdicts"][0]["action"] == action
        assert list((tmp_path / "rain").iterdir()) == []


def test_a_judge_that_fails_has_the_job_tried_again(singer: FakePipeline, tmp_path: Path) -> None:
    class Deaf(ScriptedJudge):
        def check(self, samples: NDArray[np.float32], sample_rate: int) -> Verdict:
            raise OSError("no ears")

    images = ImageOutput(None, "fake", sound_judge=Deaf(Action.ALLOW))
    (failed,) = serve(singer, images, [rain(tmp_path)]).all(JobFailed)
    assert failed.retryable
    assert "ears failed (OSError: no ears)" in failed.message


@pytest.mark.parametrize("output_format", ["mp4", "webm"])
def test_a_clip_has_its_sound_once_that_is_judged(
    camera: FakePipeline, tmp_path: Path, output_format: str
) -> None:
    images = judged(Action.ALLOW)
    link = serve(camera, images, [clip(tmp_path, output_format)])
    (done,) = link.all(JobFinished)
    video = video_of(done)
    assert (video.channels, video.sample_rate, video.num_frames) == (2, 16_000, 9)
    assert read_sound(Path(video.path)).seconds == pytest.approx(9 / 8, abs=0.1)
    assert sorted(done.safety) == ["image", "sound"]
    assert [verdict.stage for verdict in link.all(FilterVerdict)] == ["sound", "video"]


def test_a_clip_whose_sound_is_blocked_is_blocked(camera: FakePipeline, tmp_path: Path) -> None:
    (failed,) = serve(camera, judged(Action.BLOCK), [clip(tmp_path)]).all(JobFailed)
    assert (failed.code, list((tmp_path / "storm").iterdir())) == ("output_blocked", [])
    assert "sound" in failed.message


@pytest.mark.parametrize(
    ("images", "output_format", "told"),
    [
        (ImageOutput(PASSING, "fake"), "mp4", "--allow-unjudged-audio"),
        (NO_FILTER, "gif", "a gif has none"),
    ],
)
def test_a_clip_whose_sound_cannot_leave_is_silent_and_says_so(
    camera: FakePipeline, tmp_path: Path, images: ImageOutput, output_format: str, told: str
) -> None:
    (done,) = serve(camera, images, [clip(tmp_path, output_format)]).all(JobFinished)
    [warning] = done.warnings
    assert warning.startswith("the sound of clip 0 is left out: ")
    assert told in warning
    assert video_of(done).channels is None
    if output_format == "mp4":
        with pytest.raises(IndexError):
            read_sound(Path(video_of(done).path))


def test_a_blurred_clip_is_silent(camera: FakePipeline, tmp_path: Path) -> None:
    seen = iter(range(100))
    late = ScriptedFilter(lambda _: Action.BLUR if next(seen) == 6 else Action.ALLOW)
    images = ImageOutput(late, "fake", allows_unjudged_sounds=True)
    (done,) = serve(camera, images, [clip(tmp_path)]).all(JobFinished)
    assert video_of(done).channels is None
    with pytest.raises(IndexError):
        read_sound(Path(video_of(done).path))
