"""Ids of clips as OpenAI's clients know them: `video_x` is the job `job_x`."""

JOB, VIDEO = "job_", "video_"


def video_id_of(job_id: str) -> str:
    """Return the id under which OpenAI's client knows a job."""
    return VIDEO + job_id.removeprefix(JOB)
