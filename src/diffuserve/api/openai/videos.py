"""Clips as resources of OpenAI's video API."""

import math
from dataclasses import dataclass

from diffuserve.api.openai.notes import warnings_of
from diffuserve.api.openai.resources import OpenAIVideo, OpenAIVideoError, OpenAIVideoPage
from diffuserve.api.openai.tolerant_body import TolerantBody
from diffuserve.api.openai.video_bodies import REMIXED_FROM
from diffuserve.api.resources.serializers import JobSerializer
from diffuserve.domain.errors import ArtifactNotFound, DiffuserveError, NotFinished
from diffuserve.domain.jobs.job import Artifact, Job, JobStatus
from diffuserve.domain.jobs.video_ids import video_id_of
from diffuserve.domain.resources.job import ProgressResource
from diffuserve.jobs.store import JobStore

_STATUSES = {
    JobStatus.QUEUED: "queued",
    JobStatus.RUNNING: "in_progress",
    JobStatus.CANCELING: "in_progress",
    JobStatus.SUCCEEDED: "completed",
}
_ROLES = {"video": "video", "thumbnail": "poster", "spritesheet": "sprites"}
_MAX_DIGITS = 3  # enough to distinguish consecutive frames


@dataclass(frozen=True)
class VideoParts:
    """Parts that resources of clips are made with."""

    store: JobStore
    serializer: JobSerializer


async def video_of(
    parts: VideoParts, job: Job, base_url: str, fields: TolerantBody | None = None, *told: str
) -> OpenAIVideo:
    """Build the resource of a clip's job; for one just submitted also with what its body's `fields` say."""
    resource = await parts.serializer.listed_job(job, base_url)
    prompt = job.prompt.original if job.prompt else job.input.get("prompt")
    original = job.metadata.get(REMIXED_FROM)
    kept_until = parts.store.config.kept_until(job)
    return OpenAIVideo(
        id=video_id_of(job.id),
        model=job.model,
        status=_STATUSES.get(job.status, "failed"),
        progress=percent_of(job.status, resource.progress),
        created_at=int(job.created_at),
        completed_at=int(job.finished_at or 0) if job.status is JobStatus.SUCCEEDED else None,
        expires_at=None if kept_until is None else int(kept_until),
        prompt=prompt,
        seconds=shown_seconds(job.input["num_frames"], job.input["fps"]),
        size=f"{job.input['width']}x{job.input['height']}",
        remixed_from_video_id=original if isinstance(original, str) else None,
        error=_error(job),
        diffuserve_warnings=(*warnings_of(fields, job), *told),
        diffuserve_ignored=fields.ignored if fields else (),
    )


async def page_of_videos(
    parts: VideoParts, jobs: list[Job], base_url: str, has_more: bool
) -> OpenAIVideoPage:
    """Build the resource of a page."""
    videos = tuple([await video_of(parts, job, base_url) for job in jobs])
    return OpenAIVideoPage(
        data=videos,
        first_id=videos[0].id if videos else None,
        last_id=videos[-1].id if videos else None,
        has_more=has_more,
    )


def file_of(job: Job, variant: str) -> Artifact:
    """Return a file of a job's first clip. Raise `NotFinished` and `ArtifactNotFound`."""
    video_id = video_id_of(job.id)
    if not job.status.is_final:
        raise _not_finished(job)
    if job.result is None:
        raise ArtifactNotFound(f"video {video_id} is {job.status} and has no content")
    for artifact in job.result.artifacts:
        if artifact.role == _ROLES[variant] and artifact.index == 0:
            return artifact
    raise ArtifactNotFound(f"video {video_id} has no {variant}")


def percent_of(status: JobStatus, progress: ProgressResource) -> int:
    """Return how much is done: the denoising steps count for 90, and the decoded frames for 9."""
    if status is JobStatus.SUCCEEDED:
        return 100
    decoded = progress.frames / progress.num_frames if progress.num_frames else 0.0
    return int(90 * progress.fraction + 9 * decoded)


def shown_seconds(num_frames: int, fps: int) -> str:
    """Return the shortest text of a time between the start and the end of a clip's last frame.

    So 65 frames at 16 a second, which a model generates for 4 seconds, are "4".
    """
    for digits in range(_MAX_DIGITS):
        rounded = math.floor(num_frames / fps * 10**digits) / 10**digits
        if rounded > 0 and rounded >= (num_frames - 1) / fps:
            return f"{rounded:g}"
    return f"{num_frames / fps:.{_MAX_DIGITS}g}"


def _not_finished(job: Job) -> DiffuserveError:
    return NotFinished(f"video {video_id_of(job.id)} is {_STATUSES[job.status]}; wait until it is completed")


def _error(job: Job) -> OpenAIVideoError | None:
    if not job.status.is_final or job.status is JobStatus.SUCCEEDED:
        return None
    if job.error is not None:
        return OpenAIVideoError(code=job.error.code, message=job.error.message)
    return OpenAIVideoError(code=str(job.status), message=f"the video was {job.status}")
