"""Ids of videos, which are jobs: `video_x` is the job `job_x`, and a job's own id names it as well."""

from typing import Annotated

from fastapi import Path
from pydantic import AfterValidator

from diffuserve.domain.errors import JobNotFound
from diffuserve.domain.jobs.video_ids import JOB, VIDEO
from diffuserve.jobs.database.queries import is_job_id


def job_id_of(video_id: str) -> str:
    """Return the id of a video's job. Raise `JobNotFound` if no video can have this id."""
    job_id = JOB + video_id.removeprefix(VIDEO) if video_id.startswith(VIDEO) else video_id
    if not is_job_id(job_id):
        raise no_such_video(video_id)
    return job_id


def no_such_video(video_id: str) -> JobNotFound:
    """Return the error of a video that does not exist, or is another tenant's."""
    return JobNotFound(f"no video {video_id!r}")


VideoId = Annotated[str, AfterValidator(job_id_of), Path(description="Id of the video, or of its job.")]
"""Id of the job of a video in a path."""
