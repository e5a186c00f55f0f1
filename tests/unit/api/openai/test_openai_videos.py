"""OpenAI's video API: what is told of jobs, and the bodies that it takes."""

from typing import Any

import pytest
from pydantic import ValidationError

from diffuserve.api.openai.video_bodies import VideoBody
from diffuserve.api.openai.video_ids import job_id_of
from diffuserve.api.openai.videos import percent_of, shown_seconds
from diffuserve.domain.errors import JobNotFound
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.jobs.video_ids import video_id_of
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.resources.job import ProgressResource


@pytest.mark.parametrize(
    ("num_frames", "fps", "shown"),
    [
        (65, 16, "4"),
        (64, 16, "4"),
        (81, 16, "5"),
        (17, 16, "1"),
        (25, 16, "1.5"),
        (8, 8, "1"),
        (9, 8, "1"),
        (5, 16, "0.3"),
        (1, 16, "0.06"),
        (121, 24, "5"),
        (240, 120, "2"),
        (2, 120, "0.01"),
        (1, 120, "0.00833"),
    ],
)
def test_a_length_is_shown_as_it_was_asked_for(num_frames: int, fps: int, shown: str) -> None:
    assert shown_seconds(num_frames, fps) == shown


@pytest.mark.parametrize("seconds", [0.5, 1, 2, 3, 4, 5, 8, 12])
@pytest.mark.parametrize(("stride", "fps"), [(4, 16), (4, 24), (1, 8), (8, 16)])
def test_whole_and_half_seconds_come_back_as_they_were_asked_for(
    seconds: float, stride: int, fps: int
) -> None:
    spec = ModelSpec(
        name="clips",
        family="x",
        width=64,
        height=64,
        num_inference_steps=4,
        max_sequence_length=16,
        longest_sequence_length=16,
        max_frames=1_000,
        temporal_stride=stride,
        fps=fps,
    )
    frames = spec.frames_in(seconds)
    if abs(frames - seconds * fps) <= 1:  # else the model generates a clip of another length
        assert float(shown_seconds(frames, fps)) == seconds


@pytest.mark.parametrize(
    ("status", "steps", "frames", "percent"),
    [
        (JobStatus.QUEUED, 0.0, 0, 0),
        (JobStatus.RUNNING, 0.5, 0, 45),
        (JobStatus.RUNNING, 1.0, 0, 90),
        (JobStatus.RUNNING, 1.0, 8, 94),
        (JobStatus.RUNNING, 1.0, 16, 99),
        (JobStatus.SUCCEEDED, 1.0, 16, 100),
        (JobStatus.FAILED, 0.25, 0, 22),
    ],
)
def test_progress_counts_steps_and_then_frames(
    status: JobStatus, steps: float, frames: int, percent: int
) -> None:
    progress = ProgressResource(step=0, total=4, fraction=steps, frames=frames, num_frames=16)
    assert percent_of(status, progress) == percent


def test_a_video_is_named_after_its_job() -> None:
    assert video_id_of("job_0a1b") == "video_0a1b"
    assert job_id_of("video_0a1b") == job_id_of("job_0a1b") == "job_0a1b"


@pytest.mark.parametrize("name", ["", "video_", "video_job_1", "batch_1", "video_x", "video_1\0", "0a1b"])
def test_what_is_no_id_of_a_video_is_not_found(name: str) -> None:
    with pytest.raises(JobNotFound, match="no video"):
        job_id_of(name)


@pytest.mark.parametrize(
    ("sent", "seconds"), [("4", 4.0), ("0.5", 0.5), (8, 8.0), (1.25, 1.25), (None, None)]
)
def test_seconds_are_numbers_or_their_text(sent: Any, seconds: float | None) -> None:
    body = VideoBody.model_validate({"prompt": "a ball", "seconds": sent})
    assert body.job().input.seconds == seconds


@pytest.mark.parametrize(
    "sent", ["", "four", "4s", "-4", "0", 0, -1, "1e3", "nan", float("nan"), float("inf"), True, "٤", [4], {}]
)
def test_what_is_no_duration_is_refused(sent: Any) -> None:
    with pytest.raises(ValidationError, match="must be a number of seconds above 0"):
        VideoBody.model_validate({"prompt": "a ball", "seconds": sent})
