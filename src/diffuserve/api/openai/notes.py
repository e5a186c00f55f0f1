"""What a response of OpenAI's API says of its request, beyond that API."""

from diffuserve.api.openai.tolerant_body import TolerantBody
from diffuserve.domain.jobs.job import Job


def warnings_of(fields: TolerantBody | None, job: Job) -> tuple[str, ...]:
    """Return what was done otherwise than a body asks, and the warnings of the job's result."""
    ended = job.result.warnings if job.result else ()
    return (*fields.slips, *_size(fields, job), *ended) if fields else ended


def _size(fields: TolerantBody, job: Job) -> tuple[str, ...]:
    drawn = f"{job.input['width']}x{job.input['height']}"
    if fields.asked_size in (None, "auto", drawn):
        return ()
    return (f"size {fields.asked_size} was replaced by {drawn}, the nearest that {job.model} draws well",)
